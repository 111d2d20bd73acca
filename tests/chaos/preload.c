/* Loaded into processes under test (LD_PRELOAD): faults that nothing outside a process can cause.
 *
 * COORDD_TEST_CLOCK=FILE     The wall clock of this process is off by as many nanoseconds as the
 * file's first eight bytes say, at each moment: it jumps when they change. The monotonic clocks are
 * what they are. Waits to a moment of the wall clock end when that clock, as shifted, gets there.
 * COORDD_TEST_DIE_AT=CALL:N  SIGKILL in the N-th call of this name:
 * memfd (shared memory is made), or, of sockets between processes of a machine, bind, connect,
 * accept, send or receive.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { kNanosPerSecond = 1000000000 };

static _Atomic int64_t no_offset;
static _Atomic int64_t* offset = &no_offset;

__attribute__((constructor)) static void MapOffset(void) {
  const char* path = getenv("COORDD_TEST_CLOCK");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) offset = mapped;
}

static struct timespec Shifted(struct timespec time, int64_t by) {
  const int64_t nanos = (int64_t)time.tv_sec * kNanosPerSecond + time.tv_nsec + by;
  return (struct timespec){nanos / kNanosPerSecond, nanos % kNanosPerSecond};
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  if (syscall(SYS_clock_gettime, clock, out) != 0) return -1;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) *out = Shifted(*out, *offset);
  return 0;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  const struct timespec real = Shifted(*until, clock == CLOCK_REALTIME ? -*offset : 0);
  return REAL(pthread_cond_clockwait)(cond, mutex, clock, &real);
}

/* Abseil waits by futex, to a moment of the wall clock. */
long syscall(long number, ...) {
  long a[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(arguments, long);
  va_end(arguments);
  struct timespec real;
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && a[3] != 0) {
    real = Shifted(*(const struct timespec*)a[3], -*offset);
    a[3] = (long)&real;
  }
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result > -4096 && result < 0) {
    errno = (int)-result;
    return -1;
  }
  return result;
}

static void DieIfDue(const char* call) {
  static atomic_int calls;
  const char* at = getenv("COORDD_TEST_DIE_AT");
  const size_t length = strlen(call);
  if (at == NULL || strncmp(at, call, length) != 0 || at[length] != ':') return;
  if (atomic_fetch_add(&calls, 1) + 1 == atoi(at + length + 1)) kill(getpid(), SIGKILL);
}

static void DieIfLocal(int fd, const char* call) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX)
    DieIfDue(call);
}

int memfd_create(const char* name, unsigned flags) {
  DieIfDue("memfd");
  return (int)syscall(SYS_memfd_create, name, flags);
}

int bind(int fd, const struct sockaddr* address, socklen_t size) {
  DieIfLocal(fd, "bind");
  return REAL(bind)(fd, address, size);
}

int connect(int fd, const struct sockaddr* address, socklen_t size) {
  DieIfLocal(fd, "connect");
  return REAL(connect)(fd, address, size);
}

int accept4(int fd, struct sockaddr* restrict address, socklen_t* restrict size, int flags) {
  const int accepted = REAL(accept4)(fd, address, size, flags);
  if (accepted >= 0) DieIfLocal(fd, "accept");
  return accepted;
}

ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  DieIfLocal(fd, "send");
  return REAL(sendmsg)(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  const ssize_t size = REAL(recvmsg)(fd, message, flags);
  if (size > 0) DieIfLocal(fd, "receive");
  return size;
}
