/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into berth by check.bats: simulates the fault BERTH_FAULT, but only on the node
 * BERTH_FAULT_NODE (a prober finds its number in BERTH_NODE_RANK).
 * - clock: its clock is 90 s ahead
 * - shm: /dev/shm is a container's 64 MiB, nearly full
 * - folder: stat of the directory BERTH_FAULT_FOLDER does not return
 * - empty: that directory has no free space
 * - arch: uname reports riscv64
 * - crash: the prober is killed by a signal
 * - mute: the prober does not read its requests
 * - sums: one bit of the data on large connections is wrong
 * - busy: it waits for a core before it accepts, before it sends its token for the ring, and before
 *   it removes its file
 * Under the name libcuda.so.1, it is a driver for CUDA 12.8. */
#undef _FORTIFY_SOURCE /* it defines some of these functions in headers, which clang refuses */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int fault(const char *name)
{
	const char *wanted = getenv("BERTH_FAULT"), *node = getenv("BERTH_FAULT_NODE"),
		   *own = getenv("BERTH_NODE_RANK");

	return wanted && node && own && !strcmp(node, own) && !strcmp(wanted, name);
}

static int in_folder(const char *path)
{
	const char *folder = getenv("BERTH_FAULT_FOLDER");

	return folder && !strcmp(folder, path);
}

static void *real(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *out)
{
	static int (*next)(clockid_t, struct timespec *);
	int rc;

	if (!next)
		next = (int (*)(clockid_t, struct timespec *))real("clock_gettime");
	rc = next(clock, out);
	if (clock == CLOCK_REALTIME && fault("clock"))
		out->tv_sec += 90;
	return rc;
}

EXPORT int cuDriverGetVersion(int *out);
int cuDriverGetVersion(int *out)
{
	*out = 12080;
	return 0;
}

EXPORT int statvfs(const char *path, struct statvfs *out)
{
	int (*next)(const char *, struct statvfs *) =
		(int (*)(const char *, struct statvfs *))real("statvfs");
	int rc = next(path, out);

	if (!rc && !strcmp(path, "/dev/shm") && fault("shm")) {
		out->f_frsize = 4096;
		out->f_blocks = 16384;
		out->f_bavail = 1024;
	}
	if (!rc && in_folder(path) && fault("empty"))
		out->f_bavail = 1;
	return rc;
}

EXPORT int stat(const char *restrict path, struct stat *restrict out)
{
	int (*next)(const char *, struct stat *) =
		(int (*)(const char *, struct stat *))real("stat");

	while (in_folder(path) && fault("folder"))
		pause();
	return next(path, out);
}

EXPORT int uname(struct utsname *out)
{
	int (*next)(struct utsname *) = (int (*)(struct utsname *))real("uname");
	int rc = next(out);

	if (fault("crash"))
		raise(SIGKILL);
	if (!rc && fault("arch"))
		strcpy(out->machine, "riscv64");
	return rc;
}

EXPORT ssize_t read(int fd, void *out, size_t size)
{
	ssize_t (*next)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))real("read");

	/* The prober reads its requests in blocks of this size. */
	while (fd == 0 && size == 1 << 16 && fault("mute"))
		pause();
	return next(fd, out, size);
}

/* berth's recv, in server_accept.c, calls it. */
EXPORT ssize_t recvfrom(int fd, void *restrict out, size_t size, int flags,
			struct sockaddr *restrict from, socklen_t *restrict from_size)
{
	ssize_t (*next)(int, void *, size_t, int, struct sockaddr *, socklen_t *) = (ssize_t(*)(
		int, void *, size_t, int, struct sockaddr *, socklen_t *))real("recvfrom");
	ssize_t n = next(fd, out, size, flags, from, from_size);

	if (n > 4096 && fault("sums"))
		((unsigned char *)out)[n / 2] ^= 4;
	return n;
}

/* ---- a node whose cores are busy ---- */

static void wait_for_core(int milliseconds)
{
	usleep((useconds_t)milliseconds * 1000);
}

EXPORT int accept4(int fd, struct sockaddr *restrict peer, socklen_t *restrict size, int flags)
{
	int (*next)(int, struct sockaddr *, socklen_t *, int) =
		(int (*)(int, struct sockaddr *, socklen_t *, int))real("accept4");
	static bool waited;

	if (!waited && fault("busy"))
		wait_for_core(2000);
	waited = true;
	return next(fd, peer, size, flags);
}

EXPORT ssize_t send(int fd, const void *data, size_t size, int flags)
{
	ssize_t (*next)(int, const void *, size_t, int) =
		(ssize_t(*)(int, const void *, size_t, int))real("send");

	if (size == 32 && fault("busy")) /* the token */
		wait_for_core(1500);
	return next(fd, data, size, flags);
}

EXPORT int unlink(const char *path)
{
	int (*next)(const char *) = (int (*)(const char *))real("unlink");

	if (strstr(path, ".berth-check-") && fault("busy"))
		wait_for_core(2500);
	return next(path);
}
