/* Loaded before the C library (LD_PRELOAD): the wall clock is ahead by the seconds in the first 8 bytes of $CLOCK_OFFSET,
   a file that may change while processes run. Monotonic clocks are unchanged, as when the clock of a machine is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MIN_WALL_CLOCK 1000000000 /* a deadline after 2001 is one of the wall clock, not of the uptime */

static volatile int64_t *offset;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    offset = mapped == MAP_FAILED ? NULL : mapped;
    syscall(SYS_close, file);
}

static int64_t ahead(void) { return offset ? *offset : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    long result = syscall(SYS_gettimeofday, now, zone);
    if (!result) now->tv_sec += ahead();
    return result;
}

time_t time(time_t *now) {
    struct timespec current;
    clock_gettime(CLOCK_REALTIME, &current);
    if (now) *now = current.tv_sec;
    return current.tv_sec;
}

static const struct timespec *kernel_deadline(const struct timespec *deadline, struct timespec *buffer) {
    if (!deadline || deadline->tv_sec < MIN_WALL_CLOCK) return deadline;
    *buffer = *deadline;
    buffer->tv_sec -= ahead();
    return buffer;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec buffer;
    /* Without a version, dlsym may return the function of old condition variables, which have another size. */
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(condition, mutex, kernel_deadline(deadline, &buffer));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec buffer;
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(semaphore, kernel_deadline(deadline, &buffer));
}
