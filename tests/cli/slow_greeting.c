/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded: a process that gets no CPU for three seconds after it has connected. */
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int connect(int fd, const struct sockaddr *to, socklen_t size)
{
	int (*real)(int, const struct sockaddr *, socklen_t) =
		(int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
	int rc = real(fd, to, size);

	if (!rc && to->sa_family == AF_INET)
		sleep(3);
	return rc;
}
