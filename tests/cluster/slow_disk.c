// A disk each of whose writes takes 200 ms, or, where SLOW_DISK_WHILE names a file, as long as that is there: preloaded
// into a program, in place of the C library's calls.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void SleepIfFile(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
  const char* const gate = getenv("SLOW_DISK_WHILE");
  const struct timespec pause = {0, (gate == 0 ? 200 : 5) * 1000 * 1000};
  if (gate == 0) nanosleep(&pause, 0);
  while (gate != 0 && access(gate, F_OK) == 0) nanosleep(&pause, 0);
}

ssize_t writev(int fd, const struct iovec* pieces, int count) {
  static ssize_t (*next)(int, const struct iovec*, int);
  if (next == 0) next = (ssize_t(*)(int, const struct iovec*, int))dlsym(RTLD_NEXT, "writev");
  SleepIfFile(fd);
  return next(fd, pieces, count);
}

ssize_t write(int fd, const void* bytes, size_t count) {
  static ssize_t (*next)(int, const void*, size_t);
  if (next == 0) next = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  SleepIfFile(fd);
  return next(fd, bytes, count);
}
