// libcoordd-older.so of a wheel, made by tools/build-wheel: what coordd and the libraries that it
// carries call of glibc, and glibc 2.27 lacks. Whatever only moved there is in tools/elf_older.py.
//
// Each function does what the manual page of its name says by what glibc has had since 2.2.5, so
// it may run on every later one too. Where that is less than the new function can do, the new one
// is taken as soon as the machine's glibc has it.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

extern "C" {

// glibc 2.32 sets it while a process has one thread, and counters of shared pointers are then not
// atomic. Never set, they are atomic always.
char __libc_single_threaded = 0;

// Until 2.33 the header made these calls of __xstat and its like, with the version of the
// structure. x86-64 has one version, and sizes of 64 bits in both.
int OldStat(int version, const char* path, void* found) __asm__("__xstat");
int OldLstat(int version, const char* path, void* found) __asm__("__lxstat");
int OldFstat(int version, int fd, void* found) __asm__("__fxstat");
__asm__(".symver __xstat, __xstat@GLIBC_2.2.5");
__asm__(".symver __lxstat, __lxstat@GLIBC_2.2.5");
__asm__(".symver __fxstat, __fxstat@GLIBC_2.2.5");

int stat(const char* path, struct stat* found) noexcept { return OldStat(1, path, found); }
int lstat(const char* path, struct stat* found) noexcept { return OldLstat(1, path, found); }
int fstat(int fd, struct stat* found) noexcept { return OldFstat(1, fd, found); }
int stat64(const char* path, struct stat64* found) noexcept { return OldStat(1, path, found); }
int lstat64(const char* path, struct stat64* found) noexcept { return OldLstat(1, path, found); }
int fstat64(int fd, struct stat64* found) noexcept { return OldFstat(1, fd, found); }

// New in 2.28, when programs of 32 bits got files of 64. Here it is fcntl.
int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(fd, command, argument);
}

// New in 2.28; the kernel has had it since 4.11.
int statx(int folder, const char* path, int flags, unsigned mask, struct statx* found) noexcept {
  return static_cast<int>(syscall(SYS_statx, folder, path, flags, mask, found));
}

// New in 2.32.
const char* sigabbrev_np(int signal) noexcept {
  static constexpr const char* kNames[] = {
      nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
      "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
      "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  return signal > 0 && signal < static_cast<int>(std::size(kNames)) ? kNames[signal] : nullptr;
}

// New in 2.33. What there was before counts in 32 bits: of more than 4 GiB the rest is told.
struct mallinfo2 mallinfo2() noexcept {
  using Function = struct mallinfo2 (*)();
  static const auto theirs =
      reinterpret_cast<Function>(dlvsym(RTLD_DEFAULT, "mallinfo2", "GLIBC_2.33"));
  if (theirs != nullptr) return theirs();
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const struct mallinfo old = mallinfo();
  const auto wide = [](int field) { return static_cast<size_t>(static_cast<unsigned>(field)); };
  struct mallinfo2 info = {};
  info.arena = wide(old.arena);
  info.ordblks = wide(old.ordblks);
  info.smblks = wide(old.smblks);
  info.hblks = wide(old.hblks);
  info.hblkhd = wide(old.hblkhd);
  info.usmblks = wide(old.usmblks);
  info.fsmblks = wide(old.fsmblks);
  info.uordblks = wide(old.uordblks);
  info.fordblks = wide(old.fordblks);
  info.keepcost = wide(old.keepcost);
  return info;
}

// New in 2.34. Before, it closes what is open now: a descriptor that another thread opens from here
// to the start of the child, without O_CLOEXEC, stays open in the child.
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions,
                                             int first) noexcept {
  using Function = int (*)(posix_spawn_file_actions_t*, int);
  static const auto theirs = reinterpret_cast<Function>(
      dlvsym(RTLD_DEFAULT, "posix_spawn_file_actions_addclosefrom_np", "GLIBC_2.34"));
  if (theirs != nullptr) return theirs(actions, first);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd < first) continue;
    if (const int failed = posix_spawn_file_actions_addclose(actions, fd); failed != 0)
      return failed;
  }
  return error ? error.value() : 0;
}

}  // extern "C"
