/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded: a process that claims to be user 12345, as PMIx's clients do in their greeting. */
#include <sys/types.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT uid_t getuid(void)
{
	return 12345;
}

EXPORT uid_t geteuid(void)
{
	return 12345;
}

EXPORT gid_t getgid(void)
{
	return 12345;
}

EXPORT gid_t getegid(void)
{
	return 12345;
}
