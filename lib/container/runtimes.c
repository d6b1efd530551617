/* SPDX-License-Identifier: BSD-3-Clause */
/* The runtimes, as a table: their options, and how variables reach the program.
 *
 * Sources: apptainer exec --help and the user guide's page on environments, 1.4 (settings are
 * variables: a version that does not know one ignores it); ch-run(1), 0.31; podman-run(1), 4.3;
 * docker run --help, 27; doc/cmd/start.md of enroot 4.1; bwrap(1), 0.8. */
#include "container/container_internal.h"

#include <string.h>

#define APPTAINER                                                                                  \
	.start = WORDS("exec"), .bind = "--bind", .read_only = ":ro",                              \
	.settings = WORDS("QUIET", "NO_EVAL"), .nvidia = WORDS("--nv"), .amd = WORDS("--rocm"),    \
	.processes = WORDS("starter", "starter-suid", "squashfuse_ll", "squashfuse", "fuse2fs",    \
			   "gocryptfs", "fuse-overlayfs", "fusermount3"),                          \
	.pull = WORDS("pull", "--disable-cache"), .suffix = ".sif", .keeps_cwd = true,             \
	.files = true, .directories = true
/* Processes, network and memory are the host's, as outside. No entry point of the image runs, and
 * nothing is pulled: each rank would. */
#define DOCKER(...)                                                                                \
	.start = WORDS("run", "--rm", "--interactive", "--network=host", "--ipc=host",             \
		       "--pid=host", "--pull=never", "--log-driver=none",                          \
		       "--entrypoint=", __VA_ARGS__),                                              \
	.bind = "--volume", .read_only = ":ro", .cwd = "--workdir", .called = "--name",            \
	.env_option = "--env", .amd = WORDS("--device=/dev/kfd", "--device=/dev/dri"),             \
	.names = true
#define PODMAN                                                                                     \
	DOCKER("--security-opt=label=disable", "--ulimit=host"),                                   \
		.nvidia = WORDS("--device=nvidia.com/gpu=all"),                                    \
		.processes = WORDS("conmon", "catatonit", "podman pause", "fuse-overlayfs"),       \
		.remove = WORDS("/bin/sh", "-c", podman_remove, CONTAINER_RUNTIME),                \
		.rootfs = "--rootfs", .directories = true
const char CONTAINER_IMAGE[] = "";
const char CONTAINER_RUNTIME[] = "";

/* The pause process, which keeps a user's namespace, may have ended with the ranks that started it.
 * Podman then refuses all until its state is migrated, which would stop containers if any ran. */
static const char podman_remove[] =
	"rm() { \"$0\" rm --force --ignore --time=0 \"$@\"; }\n"
	"seen=$(rm \"$@\" 2>&1) && exit\n"
	"case $seen in *'podman system migrate'*) \"$0\" system migrate && rm \"$@\" ;; esac";

static const struct container_runtime runtimes[] = {
	{"apptainer", .prefix = "APPTAINER", .setuid = "libexec/apptainer/bin/starter-suid",
	 APPTAINER},
	{"singularity", .prefix = "SINGULARITY", .setuid = "libexec/singularity/bin/starter-suid",
	 APPTAINER},
	{"ch-run", .start = WORDS(NULL), .bind = "--bind", .cwd = "--cd", .end = "--",
	 .processes = WORDS("ch-run"), .fixed = true, .files = true, .directories = true},
	{"podman-hpc", PODMAN},
	{"podman", PODMAN},
	{"enroot", .start = WORDS("start"), .bind = "--mount",
	 .read_only = ":none:x-create=auto,bind,ro", .env_option = "--env",
	 .processes = WORDS("squashfuse", "fuse-overlayfs", "fuse-shim"),
	 .pull = WORDS("import", "--output"), .suffix = ".sqsh", .files = true, .names = true},
	{"docker", DOCKER("--ulimit=memlock=-1"), .nvidia = WORDS("--gpus=all"),
	 .remove = WORDS(CONTAINER_RUNTIME, "rm", "--force"), .privileged = true},
	{"bwrap", .setuid = "bin/bwrap",
	 .start = WORDS("--ro-bind", CONTAINER_IMAGE, "/", "--dev-bind", "/dev", "/dev", "--bind",
			"/proc", "/proc", "--ro-bind", "/sys", "/sys", "--bind", "/tmp", "/tmp"),
	 .bind = "--bind", .read_only = "--ro-bind", .cwd = "--chdir", .end = "--",
	 .image_first = true, .processes = WORDS("bwrap"), .fixed = true, .directories = true},
};

const struct container_runtime *container_runtime_at(size_t index)
{
	return index < sizeof runtimes / sizeof *runtimes ? &runtimes[index] : NULL;
}

const struct container_runtime *container_runtime_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; i++)
		if (!strcmp(runtimes[i].name, name))
			return &runtimes[i];
	return NULL;
}
