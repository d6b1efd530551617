/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into the trainer: the n-th listen, not counting that at MASTER_PORT, returns only once
 * the file LATE_LISTEN.n exists, so that somebody else can connect first. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int listen(int fd, int backlog)
{
	static int (*real)(int, int), count;
	const char *file = getenv("LATE_LISTEN"), *port = getenv("MASTER_PORT");
	struct sockaddr_in at = {0};
	socklen_t size = sizeof at;
	char path[4096];

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "listen");

	int rc = real(fd, backlog);

	getsockname(fd, (struct sockaddr *)&at, &size);
	if (!file || (port && atoi(port) == ntohs(at.sin_port)))
		return rc;
	snprintf(path, sizeof path, "%s.%d", file, ++count);
	while (access(path, F_OK))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return rc;
}
