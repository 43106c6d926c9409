/* Loaded before the C library (LD_PRELOAD): calls on files fail as $FAULTS says, for instance
   "write,step-20/rank-1,5,3;rename,step-30,116,-1": the first three times that a file whose path holds step-20/rank-1 is
   written, with error 5, and always when one whose path holds step-30 is renamed. Calls are open, read, write, fsync
   (and fdatasync), rename, unlink.

   Faults can also be armed while processes run: $ARMED_FAULTS is a folder with files CALL that hold "PATTERN ERROR". The
   first process whose call matches renames the file to CALL.done, and the call fails once. A negative ERROR is the number
   of a signal that the process receives instead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct iovec; /* sys/uio.h declares what is defined here in other ways */

#define MOST 16
static atomic_int failed[MOST];

/* System calls, because this file replaces the functions of the C library. */
static int takes_armed_fault(const char *call, const char *path) {
    const char *folder = getenv("ARMED_FAULTS");
    char armed[4096], done[4096], content[512], pattern[256];
    int number, before = errno, fails = 0;
    if (!folder) return 0;
    snprintf(armed, sizeof armed, "%s/%s", folder, call);
    int file = syscall(SYS_openat, AT_FDCWD, armed, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t length = syscall(SYS_read, file, content, sizeof content - 1);
        syscall(SYS_close, file);
        content[length < 0 ? 0 : length] = 0;
        snprintf(done, sizeof done, "%s.done", armed);
        if (sscanf(content, "%255s %d", pattern, &number) == 2 && !fnmatch(pattern, path, 0) &&
            !syscall(SYS_renameat, AT_FDCWD, armed, AT_FDCWD, done)) {
            if (number < 0) kill(getpid(), -number);
            fails = number > 0;
        }
    }
    errno = fails ? number : before;
    return fails;
}

static int fails(const char *call, const char *path) {
    if (takes_armed_fault(call, path)) return 1;
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
    if (!getenv("FAULTS") && !getenv("ARMED_FAULTS")) return 0;
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

#define PREAD(name)                                                                        \
    ssize_t name(int descriptor, void *buffer, size_t count, off_t offset) {               \
        static ssize_t (*real)(int, void *, size_t, off_t);                                \
        if (!real) real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, #name); \
        return file_fails("read", descriptor) ? -1 : real(descriptor, buffer, count, offset); \
    }
PREAD(pread)
PREAD(pread64)

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
