#include "base/clock.h"

#include <sched.h>
#include <time.h>

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void clock_sleep_us(int microseconds)
{
    if (microseconds <= 0) {
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000L * microseconds}, NULL);
}
