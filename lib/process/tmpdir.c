/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/tmpdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"

#define PREFIX "berth-"
#define PARENT_MAX 60 /* of a socket's 107 bytes */
#define LOCK_MAX 64
#define AT_END "at-end" /* words with a NUL behind each */
#define AT_END_MS 5000

/* The name of the lock in a directory: it holds the kernel's boot id. In a TMPDIR that machines
 * share, a lock of another machine may look free (Lustre's localflock, NFS's local_lock). False if
 * /proc is missing. */
static bool lock_name(char *out)
{
	char id[LOCK_MAX - 5];
	bool found = !file_read_line("/proc/sys/kernel/random/boot_id", id, sizeof id);

	snprintf(out, LOCK_MAX, "lock-%s", id);
	return found;
}

/* Lock the directory as long as the descriptor is open, which is returned; -1: it cannot be locked.
 * The file is locked before it gets its name, because remove_stale takes an unlocked one for an
 * agent that has ended. */
static int lock(const char *path, const char *name)
{
	char first[PARENT_MAX + 2 * LOCK_MAX], last[PARENT_MAX + 2 * LOCK_MAX];
	int fd;

	snprintf(first, sizeof first, "%s/.%s", path, name);
	snprintf(last, sizeof last, "%s/%s", path, name);
	fd = open(first, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || (!flock(fd, LOCK_EX | LOCK_NB) && !rename(first, last)))
		return fd;
	close(fd);
	return -1;
}

/* Is the directory's lock of that name held? -1: there is none. Others may probe at the same time:
 * a shared lock conflicts with the owner's exclusive one, but not with theirs. */
static int is_locked(const char *path, const char *name)
{
	char file[PARENT_MAX + 300 + LOCK_MAX];
	int fd, locked;

	snprintf(file, sizeof file, "%s/%s", path, name);
	fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -1;
	locked = flock(fd, LOCK_SH | LOCK_NB) != 0;
	close(fd);
	return locked;
}

/* Call use for each directory in parent that this user has made on this machine, and that contains
 * the file; live: its lock is still held. */
static void each(const char *parent, const char *name, const char *file,
		 void (*use)(void *context, const char *path, bool live), void *context)
{
	DIR *dir = opendir(parent);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		char path[PARENT_MAX + 300], with[PARENT_MAX + 400];
		struct stat status;
		int locked;

		if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)))
			continue;
		snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
		snprintf(with, sizeof with, "%s/%s", path, file);
		if (access(with, F_OK) || lstat(path, &status) || status.st_uid != geteuid())
			continue;
		locked = is_locked(path, name);
		if (locked >= 0)
			use(context, path, locked);
	}
	if (dir)
		closedir(dir);
}

/* Agents that were killed together with their guardians leave theirs (scancel of a step does
 * that). */
static void remove_stale(void *context, const char *path, bool live)
{
	(void)context;
	if (!live)
		tmpdir_remove(path);
}

static const char *usable_parent(const char *parent)
{
	return parent && parent[0] == '/' && strlen(parent) <= PARENT_MAX ? parent : "/tmp";
}

void tmpdir_each(const char *parent, const char *file,
		 void (*use)(void *context, const char *path, bool live), void *context)
{
	char name[LOCK_MAX];

	if (lock_name(name))
		each(usable_parent(parent), name, file, use, context);
}

bool tmpdir_is_live(const char *path)
{
	char name[LOCK_MAX];

	return lock_name(name) && is_locked(path, name) > 0;
}

int tmpdir_create(const char *parent, char *out, size_t size, int *lock_fd, struct error *err)
{
	char path[PARENT_MAX + 32], name[LOCK_MAX];
	bool locks = lock_name(name);

	parent = usable_parent(parent);
	if (locks)
		each(parent, name, name, remove_stale, NULL);
	snprintf(path, sizeof path, "%s/" PREFIX "XXXXXX", parent);
	if (!mkdtemp(path)) {
		snprintf(path, sizeof path, "/tmp/" PREFIX "XXXXXX");
		if (!mkdtemp(path))
			return error_set(err, ERR_OUTPUT,
					 "cannot create a directory for sockets in %s%s: %m; "
					 "set TMPDIR to a writable directory whose path has at "
					 "most %d characters",
					 parent, strcmp(parent, "/tmp") ? " or /tmp" : "",
					 PARENT_MAX);
	}
	*lock_fd = locks ? lock(path, name) : -1;
	snprintf(out, size, "%s", path);
	return 0;
}

int tmpdir_at_end(const char *path, const char *const *command, const char *word, struct error *err)
{
	char file[PARENT_MAX + 64];
	struct bytes text = {0};
	int fd, rc = 0;

	snprintf(file, sizeof file, "%s/" AT_END, path);
	fd = file_open_append(file, err);
	if (fd < 0)
		return -err->code;
	for (size_t i = 0; !rc && command[i] && !lseek(fd, 0, SEEK_END); i++)
		rc = bytes_add(&text, command[i], strlen(command[i]) + 1);
	if (rc || bytes_add(&text, word, strlen(word) + 1) ||
	    file_write_all(fd, text.data, text.size))
		rc = error_set(err, ERR_OUTPUT, "cannot write %s: %m", file);
	close(fd);
	bytes_free(&text);
	return rc;
}

static void run_at_end(const char *path)
{
	char file[PARENT_MAX + 64], *text = NULL, **argv;
	struct words words = {0};
	size_t size = 0;
	sigset_t none;
	pid_t pid;
	int fd;

	snprintf(file, sizeof file, "%s/" AT_END, path);
	if (file_read(file, 1 << 20, &text, &size, NULL))
		return;
	for (size_t i = 0; i < size; i += strlen(text + i) + 1)
		words_add(&words, "%s", text + i);
	argv = words_end(&words);
	pid = argv && argv[0] ? fork() : -1;
	if (!pid) {
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		fd = open("/dev/null", O_RDWR);
		for (int i = 0; i < 3; i++)
			dup2(fd, i);
		execv(argv[0], argv);
		_exit(127);
	}
	for (int i = 0; pid > 0 && waitpid(pid, NULL, WNOHANG) == 0; i++)
		if (i < AT_END_MS / 10)
			usleep(10000);
		else
			kill(pid, SIGKILL);
	free(argv);
	free(text);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
	remove(path);
	return 0;
}

void tmpdir_remove(const char *path)
{
	const char *name = strrchr(path, '/');
	struct stat status;

	if (!name || strncmp(name + 1, PREFIX, strlen(PREFIX)) || lstat(path, &status) ||
	    !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
		return;
	run_at_end(path);
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
