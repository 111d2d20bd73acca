// Variants that are made of another one's alternatives, so that no list of them stands twice.
#pragma once

#include <variant>

namespace coordd {
namespace internal {

template <typename Variant, typename... More>
struct WithMore;
template <typename... Alternatives, typename... More>
struct WithMore<std::variant<Alternatives...>, More...> {
  using Type = std::variant<Alternatives..., More...>;
};

template <typename Variant, template <typename> class Replacement>
struct EachReplaced;
template <typename... Alternatives, template <typename> class Replacement>
struct EachReplaced<std::variant<Alternatives...>, Replacement> {
  using Type = std::variant<typename Replacement<Alternatives>::Type...>;
};

}  // namespace internal

// The alternatives of `Variant`, and then `More`.
template <typename Variant, typename... More>
using VariantWith = typename internal::WithMore<Variant, More...>::Type;

// For each alternative A of `Variant`, in its place, Replacement<A>::Type.
template <typename Variant, template <typename> class Replacement>
using VariantReplaced = typename internal::EachReplaced<Variant, Replacement>::Type;

}  // namespace coordd
