/* Loaded before the C library (LD_PRELOAD): opening or reading files whose path holds $FAULT_PATH fails with
   $FAULT_ERRNO, the first $FAULT_TIMES times (-1: always) that $FAULT_CALL ("open" or "read") is made on one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct iovec; /* sys/uio.h declares what is defined here in other ways */

static atomic_int failed;

static int fails(const char *call, const char *path) {
    const char *wanted = getenv("FAULT_PATH"), *number = getenv("FAULT_ERRNO"), *times = getenv("FAULT_TIMES");
    const char *on = getenv("FAULT_CALL");
    if (!wanted || !number || !times || !on || strcmp(on, call) || !strstr(path, wanted)) return 0;
    if (atoi(times) >= 0 && atomic_fetch_add(&failed, 1) >= atoi(times)) return 0;
    errno = atoi(number);
    return 1;
}

static int read_fails(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails("read", path);
}

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...) {                                    \
        static int (*real)(const char *, int, ...);                                 \
        if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_list more;                                                               \
        va_start(more, flags);                                                      \
        mode_t mode = va_arg(more, mode_t);                                         \
        va_end(more);                                                               \
        return fails("open", path) ? -1 : real(path, flags, mode);                  \
    }
OPEN(open)
OPEN(open64)

#define PREADV(name)                                                                                      \
    ssize_t name(int descriptor, const struct iovec *parts, int count, off_t offset, int flags) {         \
        static ssize_t (*real)(int, const struct iovec *, int, off_t, int);                               \
        if (!real) real = (ssize_t(*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, #name); \
        return read_fails(descriptor) ? -1 : real(descriptor, parts, count, offset, flags);               \
    }
/* Without flags, which come last, it is called the same way. */
PREADV(preadv)
PREADV(preadv64)
PREADV(preadv2)
PREADV(preadv64v2)

ssize_t read(int descriptor, void *buffer, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    return read_fails(descriptor) ? -1 : real(descriptor, buffer, count);
}
