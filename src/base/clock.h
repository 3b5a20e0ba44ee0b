#pragma once
/** Seconds of the monotonic clock. */
double clock_seconds(void);
/** Give the processor away for about the given number of microseconds (0: yield only). */
void clock_sleep_us(int microseconds);
