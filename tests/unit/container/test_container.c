/* SPDX-License-Identifier: BSD-3-Clause */
/* What container.c makes of options, and what image.c tells of files. That a runtime takes them as
 * meant is shown by tests/cluster/container.bats. */
#include "../../support/files.h"
#include "../rows.h"

#include <sys/utsname.h>

#include "container/container.h"

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
		rc = container_check_image(path, &err);
		if (rc != rows[i].rc || !strstr(err.text, rows[i].seen))
			fail_msg("row %zu: %d %s", i, rc, err.text);
	}

	struct error err = {0};

	write_text(path, "", 0644);
	assert_int_equal(container_check_image(path, &err), -ERR_DATA);
	put(dir, "root/etc/passwd", "");
	snprintf(path, sizeof path, "%s/root", dir);
	assert_int_equal(container_check_image(path, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "has no bin/sh"));
	put_link(dir, "root/bin/sh", "/no/such/shell");
	assert_int_equal(container_check_image(path, &err), 0);
	assert_int_equal(container_check_image("/no/such.sif", &err), -ERR_INPUT);
	assert_int_equal(container_check_image("docker://debian", &err), -ERR_USAGE);
}

/* The names of runtimes are looked up in PATH; a name with "/" is used as it is. */
static void runtimes(void **state)
{
	static const struct {
		const char *name;
		int rc;
		const char *seen;
	} rows[] = {{NULL, 0, "/singularity"},
		    {"singularity", 0, "/singularity"},
		    {"apptainer", -ERR_UNAVAILABLE, "cannot find apptainer"},
		    {"docker", -ERR_USAGE, "expected apptainer or singularity"},
		    {"/no/such/apptainer", -ERR_UNAVAILABLE, "cannot find /no/such/apptainer"},
		    {"", -ERR_USAGE, "expected apptainer"},
		    {"apptainer/", -ERR_USAGE, "expected apptainer"}};
	struct env *env = env_new();
	char path[300];

	snprintf(path, sizeof path, "%s/singularity", dir);
	write_text(path, "#!/bin/sh\n", 0755);
	env_set(env, "PATH", dir, ENV_FROM_USER, NULL, NULL);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		char *found = NULL;
		int rc = container_find_runtime(rows[i].name, env, &found, &err);

		if (rc != rows[i].rc || !strstr(rc ? err.text : found, rows[i].seen))
			fail_msg("row %zu: %d %s", i, rc, rc ? err.text : found);
		free(found);
	}
	env_free(env);
}

static void command_and_environment(void **state)
{
	static const char *const argv[] = {"python", "a b", NULL};
	static const char *const expected[] = {"/x/apptainer", "exec",	"--bind", "/tmp/agent",
					       "--bind",       "/d:/e", "i.sif",  "python",
					       "a b",	       NULL};
	struct container given = {.image = (char *)(uintptr_t) "i.sif",
				  .runtime = (char *)(uintptr_t) "/x/apptainer",
				  .binds = (char *[]){(char *)(uintptr_t) "/d:/e"},
				  .bind_count = 1},
			 container = {0};
	struct env *env = env_new();
	const char **line;
	size_t at = 0;

	env_set(env, "PATH", "/host", ENV_FROM_USER, NULL, NULL);
	env_set(env, "PYTHONPATH", "/host", ENV_FROM_USER, NULL, NULL);
	env_set(env, "GIVEN", "$HOME \n", ENV_FROM_OPTION, NULL, NULL);
	env_set(env, "SLURM_JOB_ID", "7", ENV_FROM_USER, NULL, NULL);
	env_set(env, "RANK", "3", ENV_FROM_BERTH, NULL, NULL);

	/* JOB takes it to the agents. */
	json_t *json = container_to_json(&given, env);

	assert_int_equal(container_from_json(json, &container, NULL), 0);
	json_object_set_new(json, "runtime", json_string("/x/docker"));
	struct container bad = {0};

	assert_int_equal(container_from_json(json, &bad, NULL), -ERR_DATA);
	container_free(&bad);
	json_decref(json);
	line = container_command(&container, "/tmp/agent", argv);
	for (size_t i = 0; line[at]; at++) {
		if (!strcmp(line[at], "--nv") || !strcmp(line[at], "--rocm"))
			continue; /* this machine has GPUs */
		assert_string_equal(line[at], expected[i++]);
	}
	free(line);
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
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(binds), cmocka_unit_test(images),
					   cmocka_unit_test(runtimes),
					   cmocka_unit_test(command_and_environment)};
	int rc;

	snprintf(dir, sizeof dir, "%s", make_dir());
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	remove_tree(dir);
	return rc;
}
