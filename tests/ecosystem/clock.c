// A library for LD_PRELOAD: the date is CLOCK_SHIFT seconds later. Clocks that only run, by which
// programs measure how long they wait, stay as they are: libfaketime changes those as well.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CLOCK_SHIFT");
    shift = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, clock, t);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += shift;
    return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, t, zone);
    if (result == 0) t->tv_sec += shift;
    return result;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
