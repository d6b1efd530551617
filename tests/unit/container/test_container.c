/* SPDX-License-Identifier: BSD-3-Clause */
/* What container.c makes of options, and what image.c tells of files. That a runtime takes them as
 * meant is shown by tests/cluster/container.bats. */
#include "../../support/files.h"
#include "../rows.h"

#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "container/container_internal.h"

static char dir[200];

static void binds(void **state)
{
	static const struct {
		const char *bind;
		bool good;
	} rows[] = {{"/data", true},	    {"/data:/d", true}, {"/data:/d:ro", true},
		    {"/data:/d:rw", true},  {"data", false},	{"", false},
		    {"/data:d", false},	    {"/data:", false},	{"/data:/d:", false},
		    {"/data:/d:x", false},  {"/a,/b", false},	{":/d", false},
		    {"/data:/d:ro:", false}};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		int rc = container_check_bind(rows[i].bind, &err);

		if (rc != (rows[i].good ? 0 : -ERR_USAGE) ||
		    (rc && !strstr(err.text, "expected /PATH")))
			fail_msg("'%s': %d %s", rows[i].bind, rc, err.text);
	}
}

/* A SIF with one object of size bytes behind 4096 + 585 bytes, for the architecture code. */
static void write_sif(const char *path, const char *code, size_t size, size_t written,
		      unsigned char objects)
{
	unsigned char header[4096 + 585] = "#!/usr/bin/env run-singularity\n";
	FILE *file = fopen(path, "w");

	memcpy(header + 32,
	       "SIF_MAGIC\0"
	       "01",
	       13);
	memcpy(header + 45, code, 3);
	header[88] = objects;
	header[97] = 4096 >> 8;
	header[4096 + 4] = 1;
	header[4096 + 17] = sizeof header & 255;
	header[4096 + 18] = sizeof header >> 8;
	header[4096 + 25] = size & 255;
	header[4096 + 26] = (size >> 8) & 255;
	assert_non_null(file);
	assert_int_equal(fwrite(header, 1, sizeof header, file), sizeof header);
	for (size_t i = 0; i < written; i++)
		fputc('x', file);
	fclose(file);
}

static void images(void **state)
{
	struct utsname host;
	char path[300], other[8] = "04";
	bool directory;
	const char *here = "02";

	uname(&host);
	if (!strcmp(host.machine, "aarch64")) {
		here = "04";
		strcpy(other, "02");
	}
	const struct {
		const char *code;
		size_t size, written;
		unsigned char objects;
		int rc;
		const char *seen;
	} rows[] = {
		{here, 500, 500, 1, 0, ""},
		{here, 500, 499, 1, -ERR_DATA, "is not complete: it has 5180 bytes, fewer than"},
		{here, 500, 0, 1, -ERR_DATA, "is not complete"},
		{here, 500, 500, 2, -ERR_DATA, "is not complete"}, /* descriptors behind the end */
		{other, 500, 500, 1, -ERR_DATA, "and this machine is"},
		{"99", 500, 500, 1, 0, ""}, /* unknown: left to the runtime */
	};

	snprintf(path, sizeof path, "%s/x.sif", dir);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		int rc;

		write_sif(path, rows[i].code, rows[i].size, rows[i].written, rows[i].objects);
		rc = container_check_image(path, &directory, &err);
		if (rc != rows[i].rc || !strstr(err.text, rows[i].seen))
			fail_msg("row %zu: %d %s", i, rc, err.text);
	}

	struct error err = {0};

	write_text(path, "", 0644);
	assert_int_equal(container_check_image(path, &directory, &err), -ERR_DATA);
	put(dir, "root/etc/passwd", "");
	snprintf(path, sizeof path, "%s/root", dir);
	assert_int_equal(container_check_image(path, &directory, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "has no bin/sh"));
	put_link(dir, "root/bin/sh", "/no/such/shell");
	assert_int_equal(container_check_image(path, &directory, &err), 0);
	assert_int_equal(container_check_image("/no/such.sif", &directory, &err), -ERR_INPUT);
}

static void cuda(void **state)
{
	static const struct {
		const char *driver;
		int cuda;
	} rows[] = {{"580.65.06", 13}, {"595.1.2", 13},	  {"580.64.99", 12}, {"525.60.13", 12},
		    {"525.59", 11},    {"450.80.02", 11}, {"390.157", 10},   {"", 0},
		    {"x", 0},	       {"580", 0}};
	static const struct {
		const char *text;
		int cuda;
	} texts[] = {
		{"A=1\nCUDA_VERSION=12.8.1\n", 12},
		{"CUDA_VERSION='11.0'", 11},
		{"NV_CUDA_VERSION=9\nexport CUDA_VERSION=\\\"${CUDA_VERSION:-\\\"13.0.1\\\"}\\\"",
		 13},
		{"NV_CUDA_VERSION=9\n", 0},
		{"CUDA_VERSION=\nB=12\n", 0},
		{"CUDA_VERSION=\\nB=12\n", 0},
		{"CUDA_VERSION=", 0},
		{"", 0},
	};
	char path[300];
	bool compat;

	for (size_t i = 0; i < ROWS(rows); i++)
		if (container_cuda_of_driver(rows[i].driver) != rows[i].cuda)
			fail_msg("%s: %d", rows[i].driver,
				 container_cuda_of_driver(rows[i].driver));
	for (size_t i = 0; i < ROWS(texts); i++) {
		put(dir, "cuda/ch/environment", texts[i].text);
		snprintf(path, sizeof path, "%s/cuda", dir);
		if (container_cuda_of_image(path, &compat) != texts[i].cuda || compat)
			fail_msg("%s: %d", texts[i].text, container_cuda_of_image(path, &compat));
		/* A SIF has them in an object of its own. */
		snprintf(path, sizeof path, "%s/cuda.sif", dir);
		write_sif(path, "02", 1, 1, 1);
		FILE *file = fopen(path, "a");
		fprintf(file, "\n%s", texts[i].text);
		fclose(file);
		if (container_cuda_of_image(path, &compat) != texts[i].cuda || !compat)
			fail_msg("SIF, %s: %d", texts[i].text,
				 container_cuda_of_image(path, &compat));
	}
}

/* Where the image of a URI will be. */
static void pulled(void **state)
{
	static const struct {
		const char *runtime, *images, *cache, *path; /* path NULL: -ERR_USAGE */
	} rows[] = {
		{"/bin/apptainer", NULL, NULL,
		 "/home/a/.cache/berth/images/docker%3A%2F%2FR_1%2Fx%3A1.0.sif"},
		{"/bin/apptainer", NULL, "/c", "/c/berth/images/docker%3A%2F%2FR_1%2Fx%3A1.0.sif"},
		{"/bin/enroot", "/i", "/c", "/i/docker%3A%2F%2FR_1%2Fx%3A1.0.sqsh"},
		{"/bin/enroot", "i", "/c", NULL},
		{"/bin/podman", "/i", "/c", NULL},
		{"/bin/ch-run", "/i", "/c", NULL},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct container container = {.image = strdup("docker://R_1/x:1.0"),
					      .runtime = strdup(rows[i].runtime)};
		struct env *env = env_new();
		struct error err = {0};

		env_set(env, "HOME", "/home/a", ENV_FROM_USER, NULL, &err);
		if (rows[i].images)
			env_set(env, "BERTH_IMAGES", rows[i].images, ENV_FROM_USER, NULL, &err);
		if (rows[i].cache)
			env_set(env, "XDG_CACHE_HOME", rows[i].cache, ENV_FROM_USER, NULL, &err);
		int rc = container_name_pulled(&container, env, &err);

		if (rc != (rows[i].path ? 0 : -ERR_USAGE) ||
		    (!rc && (strcmp(container.image, rows[i].path) != 0 ||
			     strcmp(container.pulled_from, "docker://R_1/x:1.0") != 0)))
			fail_msg("row %zu: %d %s %s", i, rc, container.image, err.text);
		container_free(&container);
		env_free(env);
	}
}

/* The names of runtimes are looked up in PATH; a name with "/" is used as it is. Without a name,
 * the image decides. */
static void runtimes(void **state)
{
	/* Of ch-run, podman, enroot and bwrap, which are all there. */
	static const struct {
		const char *name, *image;
		int rc;
		const char *seen;
	} rows[] = {{NULL, "/", 0, "/ch-run"},
		    {NULL, "/no/such", 0, "/ch-run"},
		    {NULL, "debian:13", 0, "/podman"},
		    {NULL, "docker://debian", 0, "/enroot"},
		    {NULL, "x.sqsh", 0, "/ch-run"},
		    {NULL, "x.sif", 0, "/ch-run"}, /* none takes it */
		    {"podman", "/", 0, "/podman"},
		    {"apptainer", "/", -ERR_UNAVAILABLE, "cannot find apptainer"},
		    {"rkt", "/", -ERR_USAGE, "expected apptainer, singularity"},
		    {"/no/such/apptainer", "/", -ERR_UNAVAILABLE, "cannot find /no/such/apptainer"},
		    {"", "/", -ERR_USAGE, "expected apptainer"},
		    {"apptainer/", "/", -ERR_USAGE, "expected apptainer"}};
	static const char *const installed[] = {"ch-run", "podman", "enroot", "bwrap"};
	struct env *env = env_new();
	char path[300], image[300];

	for (size_t i = 0; i < ROWS(installed); i++) {
		snprintf(path, sizeof path, "%s/%s", dir, installed[i]);
		write_text(path, "#!/bin/sh\n", 0755);
	}
	snprintf(path, sizeof path, "%s/x.sqsh", dir);
	write_text(path, "hsqs", 0644);
	snprintf(path, sizeof path, "%s/x.sif", dir);
	write_sif(path, "02", 1, 1, 1);
	env_set(env, "PATH", dir, ENV_FROM_USER, NULL, NULL);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		char *found = NULL;
		int rc;

		snprintf(image, sizeof image, "%s%s%s", rows[i].image[0] == 'x' ? dir : "",
			 rows[i].image[0] == 'x' ? "/" : "", rows[i].image);
		rc = container_find_runtime(rows[i].name, image, env, &found, &err);

		if (rc != rows[i].rc || !strstr(rc ? err.text : found, rows[i].seen))
			fail_msg("row %zu: %d %s", i, rc, rc ? err.text : found);
		free(found);
	}
	env_free(env);
}

/* The command line with blanks between its words, without those that depend on this machine or
 * user. */
static char *command_line(const struct container *container, const struct container_start *start)
{
	static const char *const here[] = {
		"--nv", "--rocm", "--gpus=all", "--device=*", "--userns=keep-id", "--user=*", NULL};
	char **line = container_command(container, start);
	struct bytes text = {0};

	for (size_t i = 0; line[i]; i++)
		if (!env_name_matches(line[i], here)) {
			bytes_add(&text, i ? " " : "", i ? 1 : 0);
			bytes_add(&text, line[i], strlen(line[i]));
		}
	bytes_add(&text, "", 1);
	free(line);
	return (char *)text.data;
}

#define TEXT(text) ((char *)(uintptr_t)(text))
/* Whatever the order in which Podman's processes were killed, its container goes. */
static void removal(void **state)
{
	static const char fake[] =
		"#!/bin/sh\n"
		"echo \"$@\" >>\"$0.log\"\n"
		"[ \"$1\" = system ] && exec touch \"$0.migrated\"\n"
		"[ -e \"$0.migrated\" ] && exit\n"
		"echo 'try resetting with \"podman system migrate\"' >&2; exit 1\n";
	char podman[300], log[300], *words[12] = {0}, **line, *text;
	struct container container = {.image = TEXT("debian"), .runtime = podman};
	struct error err = {0};
	size_t size, count = 0;
	pid_t pid;
	int status;

	snprintf(podman, sizeof podman, "%s/podman", dir);
	snprintf(log, sizeof log, "%s/podman.log", dir);
	write_text(podman, fake, 0755);
	assert_int_equal(container_removal(&container, &line, &err), 0);
	for (; line[count]; count++)
		words[count] = line[count];
	words[count] = TEXT("x");
	pid = fork();
	if (!pid) {
		execv(words[0], words);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(file_read(log, 1000, &text, &size, &err), 0);
	assert_string_equal(text, "rm --force --ignore --time=0 x\nsystem migrate\n"
				  "rm --force --ignore --time=0 x\n");
	free(text);
	free(line);
	container.runtime = TEXT("/bin/docker");
	assert_int_equal(container_removal(&container, &line, &err), 0);
	assert_string_equal(line[0], "/bin/docker");
	assert_string_equal(line[1], "rm");
	free(line);
	container.runtime = TEXT("/bin/apptainer");
	assert_int_equal(container_removal(&container, &line, &err), 0);
	assert_null(line);
}

static void commands(void **state)
{
	static const struct {
		const char *runtime, *image, *dir, *bind, *expected;
	} rows[] = {
		{"apptainer", "/i.sif", "/l/berth-1", "/d:/e:ro",
		 "exec --bind /l/berth-1:/l/berth-1 --bind /d:/e:ro /i.sif python a b"},
		{"singularity", "/i.sif", "/tmp/berth-1", "/d",
		 "exec --bind /tmp/berth-1:/tmp/berth-1 --bind /d:/d /i.sif python a b"},
		{"ch-run", "/i", "/l/berth-1", "/d:/e",
		 "--bind /l:/l --bind /d:/e --bind /w:/w --cd /w /i -- python a b"},
		{"ch-run", "/i", "/tmp/berth-1", "/:/w:rw", "--bind /:/w --cd /w /i -- python a b"},
		{"podman", "nvcr.io/x:1", "/tmp/berth-1", "/d:/e:ro",
		 "run --rm --interactive --network=host --ipc=host --pid=host --pull=never "
		 "--log-driver=none --entrypoint= --security-opt=label=disable --ulimit=host "
		 "--name=berth-9 --volume /tmp/berth-1:/tmp/berth-1 --volume /d:/e:ro --volume "
		 "/w:/w --workdir /w --env SLURM_JOB_ID --env RANK --env GIVEN nvcr.io/x:1 python "
		 "a b"},
		{"podman-hpc", "/i", "/tmp/berth-1", "/w",
		 "run --rm --interactive --network=host --ipc=host --pid=host --pull=never "
		 "--log-driver=none --entrypoint= --security-opt=label=disable --ulimit=host "
		 "--name=berth-9 --volume /tmp/berth-1:/tmp/berth-1 --volume /w:/w --workdir /w "
		 "--env SLURM_JOB_ID --env RANK --env GIVEN --rootfs /i:O python a b"},
		{"docker", "pytorch", "/tmp/berth-1", "/d:/e",
		 "run --rm --interactive --network=host --ipc=host --pid=host --pull=never "
		 "--log-driver=none --entrypoint= --ulimit=memlock=-1 --name=berth-9 --volume "
		 "/tmp/berth-1:/tmp/berth-1 --volume /d:/e --volume /w:/w --workdir /w --env "
		 "SLURM_JOB_ID --env RANK --env GIVEN pytorch python a b"},
		{"enroot", "/i.sqsh", "/tmp/berth-1", "/d:/e:ro",
		 "start --mount /tmp/berth-1:/tmp/berth-1 --mount "
		 "/d:/e:none:x-create=auto,bind,ro --mount /w:/w --env SLURM_JOB_ID --env RANK "
		 "--env GIVEN /i.sqsh sh -c cd \"$0\" && exec \"$@\" /w python a b"},
		{"bwrap", "/i", "/tmp/berth-1", "/d:/e:ro",
		 "--ro-bind /i / --dev-bind /dev /dev --bind /proc /proc --ro-bind /sys /sys "
		 "--bind /tmp /tmp --ro-bind /d /e --bind /w /w --chdir /w -- python a b"},
	};
	struct env *env = env_new();

	env_set(env, "PATH", "/host", ENV_FROM_USER, NULL, NULL);
	env_set(env, "SLURM_JOB_ID", "7", ENV_FROM_USER, NULL, NULL);
	env_set(env, "RANK", "3", ENV_FROM_BERTH, NULL, NULL);
	env_set(env, "GIVEN", "x", ENV_FROM_USER, NULL, NULL);
	for (size_t i = 0; i < ROWS(rows); i++) {
		char runtime[40], *line;
		struct container container = {.image = TEXT(rows[i].image),
					      .runtime = runtime,
					      .binds = (char *[]){TEXT(rows[i].bind)},
					      .bind_count = 1,
					      .exact = (char *[]){TEXT("GIVEN")},
					      .exact_count = 1};
		struct container_start start = {
			.dir = rows[i].dir,
			.cwd = "/w",
			.name = "berth-9",
			.env = env,
			.argv = (const char *const[]){"python", "a b", NULL}};

		snprintf(runtime, sizeof runtime, "/x/%s", rows[i].runtime);
		line = command_line(&container, &start);
		assert_int_equal(strncmp(line, runtime, strlen(runtime)), 0);
		assert_string_equal(line + strlen(runtime) + 1, rows[i].expected);
		free(line);
	}
	env_free(env);
}

/* What a site shows is left out where it cannot be shown, or where the user shows something. */
static void offers(void **state)
{
	static const struct {
		const char *runtime, *offer;
		bool shown;
	} rows[] = {{"apptainer", "/etc:/in", true},	  {"apptainer", "/etc:/out:ro", true},
		    {"apptainer", "/no/such:/in", false}, {"apptainer", "/etc:/mine", false},
		    {"apptainer", "/etc:/mine/x", false}, {"ch-run", "/etc:/in", true},
		    {"ch-run", "/etc:/out", false},	  {"ch-run", "/etc:/in:ro", false},
		    {"bwrap", "/etc:/in:ro", true},	  {"bwrap", "/etc", false}};
	char image[300], inside[320];

	snprintf(image, sizeof image, "%s/offers", dir);
	snprintf(inside, sizeof inside, "%s/in", image);
	assert_int_equal(file_make_dirs(inside, NULL), 0);
	for (size_t i = 0; i < ROWS(rows); i++) {
		char runtime[40], *line;
		struct container container = {.image = image,
					      .runtime = runtime,
					      .binds = (char *[]){TEXT("/w:/mine")},
					      .bind_count = 1,
					      .offers = (char *[]){TEXT(rows[i].offer)},
					      .offer_count = 1};
		struct container_start start = {.dir = "/tmp/berth-1",
						.cwd = "/mine",
						.name = "x",
						.argv = (const char *const[]){"true", NULL}};

		snprintf(runtime, sizeof runtime, "/x/%s", rows[i].runtime);
		line = command_line(&container, &start);
		if (!strstr(line, " /etc") == rows[i].shown)
			fail_msg("%s, %s: %s", rows[i].runtime, rows[i].offer, line);
		free(line);
	}
}

/* JOB takes the options to the agents, and what env has from --env is exact. */
static struct container sent(const char *runtime, const char *image, const struct env *env)
{
	struct container given = {.image = TEXT(image), .runtime = TEXT(runtime)}, out = {0};
	json_t *json = container_to_json(&given, env);

	assert_int_equal(container_from_json(json, &out, NULL), 0);
	json_decref(json);
	return out;
}

static struct env *environment_of_a_rank(void)
{
	struct env *env = env_new();

	env_set(env, "PATH", "/host", ENV_FROM_USER, NULL, NULL);
	env_set(env, "PYTHONPATH", "/host", ENV_FROM_USER, NULL, NULL);
	env_set(env, "GIVEN", "$HOME \n", ENV_FROM_OPTION, NULL, NULL);
	env_set(env, "SLURM_JOB_ID", "7", ENV_FROM_USER, NULL, NULL);
	env_set(env, "RANK", "3", ENV_FROM_BERTH, NULL, NULL);
	env_set(env, "TMPDIR", "/l", ENV_FROM_USER, NULL, NULL);
	return env;
}

static void environment_with_a_prefix(void **state)
{
	struct env *env = environment_of_a_rank();
	struct container container = sent("/x/apptainer", "/i.sif", env);

	assert_int_equal(container_environment(&container, env, NULL), 0);
	assert_string_equal(env_get(env, "APPTAINERENV_GIVEN"), "$HOME \n");
	assert_string_equal(env_get(env, "APPTAINERENV_SLURM_JOB_ID"), "7");
	assert_string_equal(env_get(env, "APPTAINERENV_RANK"), "3");
	assert_string_equal(env_get(env, "APPTAINER_NO_EVAL"), "1");
	assert_string_equal(env_get(env, "PATH"), "/host"); /* for the runtime itself */
	assert_null(env_get(env, "APPTAINERENV_PATH"));
	assert_null(env_get(env, "PYTHONPATH"));
	env_free(env);
	container_free(&container);

	json_t *json = json_pack("{s:s, s:s, s:[], s:[]}", "image", "i", "runtime", "/x/rkt",
				 "binds", "exact");
	struct container bad = {0};

	assert_int_equal(container_from_json(json, &bad, NULL), -ERR_DATA);
	container_free(&bad);
	json_decref(json);
}

/* ch-run and bwrap pass on what they have. */
static void environment_of_the_image(void **state)
{
	struct env *env = environment_of_a_rank();
	char image[300];
	struct container container;

	put(dir, "of-image/ch/environment",
	    "PATH='/image/bin:/"
	    "bin'\nGIVEN=image\n\nbad\n=bad\nRANK=9\nEMPTY=\nODD='it's'\nLAST=end");
	snprintf(image, sizeof image, "%s/of-image", dir);
	container = sent("/x/ch-run", image, env);
	assert_int_equal(container_environment(&container, env, NULL), 0);
	assert_string_equal(env_get(env, "PATH"), "/image/bin:/bin");
	assert_string_equal(env_get(env, "GIVEN"), "$HOME \n");
	assert_string_equal(env_get(env, "RANK"), "3");
	assert_string_equal(env_get(env, "EMPTY"), "");
	assert_string_equal(env_get(env, "ODD"), "it's");
	assert_string_equal(env_get(env, "LAST"), "end");
	assert_null(env_get(env, "bad"));
	assert_null(env_get(env, "PYTHONPATH"));
	assert_null(env_get(env, "TMPDIR"));
	assert_non_null(env_get(env, "USER"));
	container_free(&container);
	env_free(env);

	env = environment_of_a_rank();
	env_set(env, "PYTHONPATH", "/given", ENV_FROM_OPTION, NULL, NULL);
	container = sent("/x/bwrap", "/no/such", env);
	assert_int_equal(container_environment(&container, env, NULL), 0);
	assert_string_equal(env_get(env, "PATH"),
			    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	assert_string_equal(env_get(env, "PYTHONPATH"), "/given");
	container_free(&container);
	env_free(env);
}

/* What is refused before the start; image and bind: below dir. */
static void checks(void **state)
{
	static const struct {
		const char *runtime, *image, *bind, *cwd;
		int rc;
		const char *seen;
	} rows[] = {
		{"apptainer", "/tree", "/tree", "/w", 0, ""},
		{"apptainer", "/tree", "/none", "/w", -ERR_INPUT, "cannot bind"},
		{"ch-run", "/tree", NULL, "/tmp/x", 0, ""},
		{"ch-run", "/tree", NULL, "/", 0, ""},
		{"ch-run", "/tree", NULL, "/w", -ERR_INPUT, "cannot show /w, as the image has"},
		{"ch-run", "/tree", "/tree:/etc", "/w", -ERR_INPUT, "mkdir -p"},
		{"ch-run", "/tree", "/tree:/etc", "/etc/x", 0, ""},
		{"ch-run", "/tree", "/tree:/etc:ro", "/", -ERR_USAGE, "without writing"},
		{"ch-run", "/tree", "/tree:/none", "/", -ERR_INPUT, "cannot show /none"},
		{"bwrap", "/tree", "/tree:/etc:ro", "/", 0, ""},
		{"bwrap", "/x.sqsh", NULL, "/", -ERR_USAGE, "takes a directory, and"},
		{"podman", "/tree", "/tree:/none", "/w", 0, ""},
		{"podman", "/x.sqsh", NULL, "/w", -ERR_USAGE, "a directory or a name of its own"},
		{"podman", "tree", NULL, "/w", 0, ""},
		{"docker", "/tree", NULL, "/w", -ERR_USAGE, "takes a name of its own"},
		{"enroot", "/tree", NULL, "/w", -ERR_USAGE, "takes a file or a name"},
		{"enroot", "/x.sqsh", NULL, "/w", 0, ""},
		{"enroot", "/none", NULL, "/w", -ERR_INPUT, "No such file"},
	};
	char path[300], squashfs[128] = "hsqs";

	put(dir, "tree/etc/passwd", "");
	put_link(dir, "tree/bin/sh", "/no/such/shell");
	squashfs[40] = sizeof squashfs - 1;
	snprintf(path, sizeof path, "%s/x.sqsh", dir);
	FILE *file = fopen(path, "w");

	assert_int_equal(fwrite(squashfs, 1, sizeof squashfs, file), sizeof squashfs);
	fclose(file);
	for (size_t i = 0; i < ROWS(rows); i++) {
		char image[300], bind[300];
		struct container container = {.image = image,
					      .runtime = TEXT(rows[i].runtime),
					      .binds = (char *[]){bind},
					      .bind_count = rows[i].bind ? 1 : 0};
		struct error err = {0};
		int rc;

		snprintf(image, sizeof image, "%s%s", *rows[i].image == '/' ? dir : "",
			 rows[i].image);
		snprintf(bind, sizeof bind, "%s%s", dir, rows[i].bind ? rows[i].bind : "");
		rc = container_check(&container, rows[i].cwd, &err);
		if (rc != rows[i].rc || !strstr(err.text, rows[i].seen))
			fail_msg("row %zu: %d %s", i, rc, err.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(binds),
					   cmocka_unit_test(images),
					   cmocka_unit_test(cuda),
					   cmocka_unit_test(pulled),
					   cmocka_unit_test(runtimes),
					   cmocka_unit_test(removal),
					   cmocka_unit_test(commands),
					   cmocka_unit_test(offers),
					   cmocka_unit_test(environment_with_a_prefix),
					   cmocka_unit_test(environment_of_the_image),
					   cmocka_unit_test(checks)};
	int rc;

	snprintf(dir, sizeof dir, "%s", make_dir());
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	remove_tree(dir);
	return rc;
}
