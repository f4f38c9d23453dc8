/* SHA-256 (FIPS 180-4), all at once. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>

/* Writes 64 lower-case hex digits and a NUL. */
void sha256_hex(const void *bytes, size_t len, char hex[65]);

#endif
