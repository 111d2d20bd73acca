// Whether two function types are called alike: as many parameters, each and the result of the same
// size and of the same sort. Names of types may differ.
#pragma once

#include <type_traits>

namespace coordd {

template <typename A, typename B>
constexpr bool SameSort() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else {
    constexpr bool kIntegers =
        (std::is_integral_v<A> || std::is_enum_v<A>)&&(std::is_integral_v<B> || std::is_enum_v<B>);
    constexpr bool kPointers = std::is_pointer_v<A> && std::is_pointer_v<B>;
    constexpr bool kClasses = std::is_class_v<A> && std::is_class_v<B>;
    return sizeof(A) == sizeof(B) && (kIntegers || kPointers || kClasses || std::is_same_v<A, B>);
  }
}

template <typename A, typename B>
struct SameAbi : std::false_type {};
template <typename ResultA, typename... A, typename ResultB, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameAbi<ResultA (*)(A...), ResultB (*)(B...)>
    : std::bool_constant<SameSort<ResultA, ResultB>() && (SameSort<A, B>() && ...)> {
};

template <typename A, typename B>
constexpr bool kSameAbi = SameAbi<A, B>::value;

}  // namespace coordd
