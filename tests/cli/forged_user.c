/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded: a process that claims to be user 12345, as PMIx's clients do in their greeting. */
#include <sys/types.h>
#include <unistd.h>

uid_t getuid(void)
{
	return 12345;
}

uid_t geteuid(void)
{
	return 12345;
}

gid_t getgid(void)
{
	return 12345;
}

gid_t getegid(void)
{
	return 12345;
}
