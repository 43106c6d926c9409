/* Loaded before the C library (LD_PRELOAD): calls on files fail as $FAULTS says, for instance
   "write,step-20/rank-1,5,3;rename,step-30,116,-1": the first three times that a file whose path holds step-20/rank-1 is
   written, with error 5, and always when one whose path holds step-30 is renamed. Calls are open, read, write, fsync
   (and fdatasync), rename, unlink. */
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

#define MOST 16
static atomic_int failed[MOST];

static int fails(const char *call, const char *path) {
    const char *faults = getenv("FAULTS");
    char on[16], where[256];
    int number, times, length;
    for (int which = 0; faults && which < MOST; which++) {
        if (sscanf(faults, "%15[^,],%255[^,],%d,%d%n", on, where, &number, &times, &length) != 4) return 0;
        faults = faults[length] ? faults + length + 1 : NULL;
        if (strcmp(on, call) || !strstr(path, where)) continue;
        if (times >= 0 && atomic_fetch_add(&failed[which], 1) >= times) continue;
        errno = number;
        return 1;
    }
    return 0;
}

static int file_fails(const char *call, int descriptor) {
    char link[64], path[4096];
    if (!getenv("FAULTS")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(call, path);
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
        return file_fails("read", descriptor) ? -1 : real(descriptor, parts, count, offset, flags);               \
    }
/* Without flags, which come last, it is called the same way. */
PREADV(preadv)
PREADV(preadv64)
PREADV(preadv2)
PREADV(preadv64v2)

ssize_t read(int descriptor, void *buffer, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    return file_fails("read", descriptor) ? -1 : real(descriptor, buffer, count);
}

ssize_t write(int descriptor, const void *buffer, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    return file_fails("write", descriptor) ? -1 : real(descriptor, buffer, count);
}

#define SYNC(name)                                                          \
    int name(int descriptor) {                                              \
        static int (*real)(int);                                            \
        if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name);            \
        return file_fails("fsync", descriptor) ? -1 : real(descriptor);     \
    }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real) real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return fails("rename", from) ? -1 : real(from, to);
}

int unlinkat(int folder, const char *path, int flags) {
    static int (*real)(int, const char *, int);
    if (!real) real = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    return fails("unlink", path) ? -1 : real(folder, path, flags);
}

int unlink(const char *path) {
    static int (*real)(const char *);
    if (!real) real = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    return fails("unlink", path) ? -1 : real(path);
}
