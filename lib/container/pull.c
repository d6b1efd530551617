/* SPDX-License-Identifier: BSD-3-Clause */
/* Images of registries: pulled once into a directory of the user's, which all nodes see, and used
 * by later jobs as well. One that is there is whole, because only a whole one gets its name.
 * Whoever uses an image holds a lock on it, so that no other run deletes it to make room. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "container/container_internal.h"

#define PULL_MS 3600000
#define LIMIT_GB 100
#define SCHEME "%3A%2F%2F" /* in the name of each image, and hardly of another file */

/* ---- names ---- */

static int find_dir(const struct env *env, char *out, size_t size, struct error *err)
{
	const char *own = env_get(env, "BERTH_IMAGES"), *cache = env_get(env, "XDG_CACHE_HOME"),
		   *home = env_get(env, "HOME");

	if (own && *own != '/')
		return error_set(err, ERR_USAGE,
				 "BERTH_IMAGES=%.200s: expected a path that begins "
				 "with /",
				 own);
	if (!own && (!cache || *cache != '/') && (!home || *home != '/'))
		return error_set(err, ERR_USAGE,
				 "--container: HOME is not set; name a directory for pulled images "
				 "with BERTH_IMAGES");
	snprintf(out, size, "%s%s",
		 own			  ? own
		 : cache && *cache == '/' ? cache
					  : home,
		 own			  ? ""
		 : cache && *cache == '/' ? "/berth/images"
					  : "/.cache/berth/images");
	return 0;
}

int container_name_pulled(struct container *container, const struct env *env, struct error *err)
{
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	char path[4096], name[240];
	size_t used = 0;
	int rc;

	if (!runtime->pull)
		return error_set(
			err, ERR_USAGE,
			"--container '%.200s': berth pulls with apptainer, singularity and "
			"enroot. Pull it with %s, on all nodes or to where all see it, and "
			"name the result",
			container->image, runtime->name);
	/* As in a URL, so that no two images have one name. */
	for (const char *at = container->image; *at && used < sizeof name - 20; at++)
		used += (size_t)sprintf(name + used,
					(*at >= '0' && *at <= '9') || strchr("-._", *at) ||
							((*at | 32) >= 'a' && (*at | 32) <= 'z')
						? "%c"
						: "%%%02X",
					(unsigned char)*at);
	if (used >= sizeof name - 20)
		return error_set(err, ERR_USAGE, "--container '%.300s': the name is too long",
				 container->image);
	rc = find_dir(env, path, sizeof path - sizeof name, err);
	if (rc)
		return rc;
	container->pulled_from = container->image;
	container->image = text_format("%s/%s%s", path, name, runtime->suffix);
	return container->image ? 0 : error_memory(err, "--container");
}

/* Refuse what users other than this one and root may have written. */
static int check_owner(int fd, const char *path, struct error *err)
{
	struct stat info;

	if (fstat(fd, &info))
		return error_set(err, ERR_IO, "--container: cannot read %s: %m", path);
	if ((info.st_uid && info.st_uid != geteuid()) ||
	    (info.st_mode & 022 && !(S_ISDIR(info.st_mode) && info.st_mode & S_ISVTX)))
		return error_set(err, ERR_OUTPUT,
				 "--container: %s belongs to user %u and has mode %o: others could "
				 "change the image. Set BERTH_IMAGES to a directory that only you "
				 "can write, or run chmod go-w",
				 path, (unsigned)info.st_uid, info.st_mode & 07777);
	return 0;
}

/* ---- room ---- */

struct entry {
	char name[256];
	struct stat info;
};

static int by_age(const void *a, const void *b)
{
	const struct timespec *x = &((const struct entry *)a)->info.st_mtim,
			      *y = &((const struct entry *)b)->info.st_mtim;

	return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
				      : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static bool is_suffix(const char *text)
{
	const struct container_runtime *at;

	for (size_t i = 0; (at = container_runtime_at(i)); i++)
		if (at->suffix && !strcmp(at->suffix, text))
			return true;
	return false;
}

/* Delete the images that were used longest ago, and are not in use, until limit bytes are kept. */
static void make_room(const char *dir, int64_t limit)
{
	DIR *list = opendir(dir);
	struct dirent *found;
	struct entry *entries = NULL, *entry;
	const char *suffix;
	size_t count = 0;
	int64_t total = 0;

	while (list && (found = readdir(list))) {
		suffix = strrchr(found->d_name, '.');
		if (!strstr(found->d_name, SCHEME) || !suffix || !is_suffix(suffix) ||
		    !(entry = array_add(&entries, &count, sizeof *entry)))
			continue;
		strcpy(entry->name, found->d_name);
		if (fstatat(dirfd(list), entry->name, &entry->info, AT_SYMLINK_NOFOLLOW) ||
		    entry->info.st_uid != geteuid())
			count--;
		else
			total += entry->info.st_size;
	}
	qsort(entries, count, sizeof *entries, by_age);
	for (size_t i = 0; list && total > limit && i < count; i++) {
		int fd = openat(dirfd(list), entries[i].name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

		if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) &&
		    !unlinkat(dirfd(list), entries[i].name, 0)) {
			total -= entries[i].info.st_size;
			log_user(LOG_NOTE, "deleted %s/%s to make room for images", dir,
				 entries[i].name);
		}
		if (fd >= 0)
			close(fd);
	}
	free(entries);
	if (list)
		closedir(list);
}

/* ---- the pull ---- */

/* The runtime's messages are the user's. It ends with this process, and its descriptor of the lock
 * with it. */
static int run_pull(const struct container *container, const char *part, const struct env *env,
		    struct error *err)
{
	const struct container_runtime *runtime = container_runtime_of(container->runtime);
	struct words words = {0};
	char **argv, **envp = env_to_envp(env);
	int64_t until = clock_now_ms() + PULL_MS;
	pid_t pid, ended = 0;
	int status = 0, null;

	words_add(&words, "%s", container->runtime);
	words_add_list(&words, runtime->pull);
	words_add_list(&words, WORDS(part, container->pulled_from));
	argv = words_end(&words);
	pid = argv && envp ? fork() : -1;
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		null = open("/dev/null", O_RDONLY);
		dup2(null, STDIN_FILENO);
		dup2(STDERR_FILENO, STDOUT_FILENO);
		execve(argv[0], argv, envp);
		_exit(127);
	}
	free(argv);
	free(envp);
	if (pid < 0)
		return error_set(err, ERR_UNAVAILABLE, "--container: cannot start %s: %m",
				 container->runtime);
	while (!ended && clock_now_ms() < until) {
		ended = waitpid(pid, &status, WNOHANG);
		if (!ended)
			usleep(20000);
	}
	if (!ended) {
		kill(pid, SIGTERM);
		return error_set(err, ERR_UNAVAILABLE,
				 "--container: pulling %.300s took over an hour",
				 container->pulled_from);
	}
	return status ? error_set(err, ERR_UNAVAILABLE,
				  "--container: %s cannot pull %.300s (exit code %d); its messages "
				  "are above",
				  runtime->name, container->pulled_from,
				  WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status))
		      : 0;
}

static int pull(const struct container *container, const struct env *env, struct error *err)
{
	char *part = text_format("%s.part", container->image);
	bool directory;
	int fd, rc;

	if (!part)
		return error_memory(err, "--container");
	unlink(part); /* of a run that was killed; no process writes to it, as the lock is ours */
	log_user(LOG_NOTE, "pulling %s to %s", container->pulled_from, container->image);
	rc = run_pull(container, part, env, err);
	if (!rc)
		rc = container_check_image(part, &directory, err);
	if (!rc) {
		fd = open(part, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
		rc = fd < 0 ? 0 : check_owner(fd, part, err);
		if (!rc && (fd < 0 || fsync(fd) || rename(part, container->image) ||
			    file_sync_dir(container->image)))
			rc = error_set(err, ERR_IO, "--container: cannot keep %s: %m",
				       container->image);
		if (fd >= 0)
			close(fd);
	}
	if (rc)
		unlink(part);
	free(part);
	return rc;
}

/* Use the image if it is there: the lock stays as long as this process. Return 1 for an image, 0
 * for none, or an error. */
static int use(const char *image, struct error *err)
{
	int fd = open(image, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc;
	struct stat info;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0)
		return error_set(err, ERR_OUTPUT, "--container: cannot open %s: %m", image);
	rc = check_owner(fd, image, err);
	if (!rc && !flock(fd, LOCK_SH | LOCK_NB) && !fstat(fd, &info) && info.st_nlink) {
		futimens(fd, NULL);
		return 1;
	}
	close(fd);
	return rc;
}

/* Only one process pulls an image; the others wait. */
static int lock(const struct container *container, int fd, struct error *err)
{
	int64_t until = clock_now_ms() + PULL_MS;
	bool noted = false;

	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return error_set(
				err, ERR_OUTPUT,
				"--container: cannot lock %s.lock: %m. Name a directory on "
				"another file system with BERTH_IMAGES",
				container->image);
		if (clock_now_ms() > until)
			return error_set(
				err, ERR_UNAVAILABLE,
				"--container: another run has been pulling %.300s for over an "
				"hour (the lock is %s.lock)",
				container->pulled_from, container->image);
		if (!noted)
			log_user(LOG_NOTE, "waiting for another run that pulls %s",
				 container->pulled_from);
		noted = true;
		usleep(100000);
	}
	return 0;
}

int container_pull(const struct container *container, const struct env *env, struct error *err)
{
	const char *limit_text = env_get(env, "BERTH_IMAGES_GB");
	char *dir, *lock_path;
	int limit_gb = LIMIT_GB, fd = -1, rc = 0, used;
	mode_t mask;

	if (!container->pulled_from)
		return 0;
	mask = umask(022);
	umask(mask | 022);
	dir = strndup(container->image,
		      (size_t)(strrchr(container->image, '/') - container->image));
	lock_path = text_format("%s.lock", container->image);
	if (!dir || !lock_path)
		rc = error_memory(err, "--container");
	if (!rc && limit_text)
		rc = number_int("BERTH_IMAGES_GB", limit_text, 0, 1 << 20, &limit_gb, err);
	if (!rc)
		rc = file_make_dirs(dir, err);
	if (!rc && ((fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0))
		rc = error_set(err, ERR_OUTPUT, "--container: cannot open %s: %m", dir);
	if (!rc)
		rc = check_owner(fd, dir, err);
	if (fd >= 0)
		close(fd);
	fd = -1;
	/* Without the lock, as the directory may be root's. */
	used = rc ? rc : use(container->image, err);
	/* The pull inherits this descriptor: its lock lasts until the last process has ended. */
	if (!used && (fd = open(lock_path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600)) < 0)
		used = error_set(err, ERR_OUTPUT, "--container: cannot create %s: %m", lock_path);
	if (!used) {
		fchmod(fd, 0600); /* whoever can read it can lock it */
		used = check_owner(fd, lock_path, err);
	}
	if (!used)
		used = lock(container, fd, err);
	if (!used)
		used = use(container->image, err);
	if (!used) {
		used = pull(container, env, err);
		if (!used && !(used = use(container->image, err)))
			used = error_set(err, ERR_IO, "--container: cannot lock %s: %m",
					 container->image);
		if (used > 0)
			make_room(dir, (int64_t)limit_gb << 30);
	}
	umask(mask);
	if (fd >= 0)
		close(fd);
	free(dir);
	free(lock_path);
	return used < 0 ? used : 0;
}
