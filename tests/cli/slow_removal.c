/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded: each removal of a file in the directory SLOW_REMOVAL takes 0.8 s. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int unlink(const char *path)
{
	int (*real)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
	const char *slow = getenv("SLOW_REMOVAL");

	if (slow && !strncmp(path, slow, strlen(slow)))
		usleep(800000);
	return real(path);
}
