/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks /dev/shm, where ranks of one node exchange data (NCCL, Open MPI, PyTorch's data
 * loaders). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/json.h"
#include "check/check_internal.h"

#define SHM_DIR "/dev/shm"
#define NEEDED_BYTES (64LL << 20) /* a container's default; NCCL alone fills it */
#define PLENTY_BYTES (1LL << 30)

/* Bytes of nccl-* files that this user's earlier programs have left. */
static int64_t left_behind(void)
{
	DIR *dir = opendir(SHM_DIR);
	int64_t bytes = 0;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		struct stat info;

		if (!strncmp(entry->d_name, "nccl-", 5) &&
		    !fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) &&
		    info.st_uid == getuid())
			bytes += (int64_t)info.st_blocks * 512;
	}
	if (dir)
		closedir(dir);
	return bytes;
}

static json_t *collect(const struct prober *prober)
{
	struct statvfs info;

	(void)prober;
	if (statvfs(SHM_DIR, &info))
		return json_pack("{s:s}", "error", strerror(errno));
	return json_pack("{s:I, s:I, s:b, s:I}", "free",
			 (json_int_t)info.f_bavail * (json_int_t)info.f_frsize, "size",
			 (json_int_t)info.f_blocks * (json_int_t)info.f_frsize, "writable",
			 access(SHM_DIR, W_OK | X_OK) == 0, "left", (json_int_t)left_behind());
}

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	static const char bigger[] =
		"make it larger: --shm-size of the container, size= of the mount";

	int64_t size = 0, left = 0, unused = 0;

	if (!answer)
		return;
	json_get_int("shm", answer, "free", 0, INT64_MAX, &unused, NULL);
	json_get_int("shm", answer, "size", 0, INT64_MAX, &size, NULL);
	json_get_int("shm", answer, "left", 0, INT64_MAX, &left, NULL);
	if (*check_text(answer, "error"))
		check_add(check, i, "shm", CHECK_FAULT, "mount a tmpfs at " SHM_DIR, SHM_DIR ": %s",
			  check_text(answer, "error"));
	else if (!json_is_true(json_object_get(answer, "writable")))
		check_add(check, i, "shm", CHECK_FAULT, "chmod 1777 " SHM_DIR,
			  SHM_DIR " is not writable by this user");
	else if (unused <= NEEDED_BYTES)
		check_add(check, i, "shm", CHECK_FAULT,
			  left > 0 ? "rm " SHM_DIR "/nccl-* left by programs that have ended"
				   : bigger,
			  SHM_DIR " has %lld MiB free of %lld MiB: NCCL fails with 'No "
				  "space left on device'; your nccl-* files take %lld MiB",
			  (long long)(unused >> 20), (long long)(size >> 20),
			  (long long)(left >> 20));
	else if (unused < PLENTY_BYTES)
		check_add(check, i, "shm", CHECK_NOTE, bigger,
			  SHM_DIR " has %lld MiB free of %lld MiB: too little for data "
				  "loaders with many processes",
			  (long long)(unused >> 20), (long long)(size >> 20));
	else
		check_add(check, i, "shm", CHECK_OK, NULL, "%lld GiB free",
			  (long long)(unused >> 30));
}

const struct check_probe probe_shm = {"shm", .collect = collect, .judge_node = judge_node};
