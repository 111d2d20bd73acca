// libcoordd-older.so of a wheel: what is called of libstdc++ and g++ 7's lacks. What the headers
// define is instantiated here; std::filesystem, which g++ 9 brought into the shared library, is
// taken from g++'s static one by tools/build-wheel. All that is older stays the machine's: streams,
// locales and exceptions are of one library in the whole process. (Red Hat's own newer compilers
// make programs for RHEL so, from libstdc++_nonshared.a.)
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

// g++ 9: made without an argument.
template std::basic_stringstream<char>::basic_stringstream();
template std::basic_ostringstream<char>::basic_ostringstream();
// g++ 11, for C++20: of an object that stays what it is, and of one that may be emptied.
template std::string std::basic_stringbuf<char>::str() const&;
template std::string std::basic_stringstream<char>::str() const&;
template std::string std::basic_ostringstream<char>::str() const&;
template std::basic_istringstream<char>::basic_istringstream(std::string&&,
                                                             std::ios_base::openmode);
template void std::string::reserve();

namespace std {

// g++ 9. The text is counted, not copied: both are the same.
runtime_error::runtime_error(runtime_error&& other) noexcept
    : runtime_error(static_cast<const runtime_error&>(other)) {}

// g++ 11: `new` of an array whose size is negative or too large.
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
