/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules, tested with modules made for this test: MODULES is their directory. */
#include "../rows.h"

#include <unistd.h>

#include "base/module.h"

static char dir[] = "/tmp/berth-test-module-XXXXXX", garbage[64];

static int make_dir(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(garbage, sizeof garbage, "%s/test-module.so", dir);
	FILE *file = fopen(garbage, "we");

	return !file || fputs("no library", file) < 0 || fclose(file) ? -1 : 0;
}

static int remove_dir(void **state)
{
	return unlink(garbage) | rmdir(dir);
}

static void loads(void **state)
{
	const int *value = NULL, *again = NULL;
	struct error err = {0};
	char path[512];

	assert_int_equal(
		module_load("test-module", "test_value", MODULES, 0, (void **)&value, &err), 0);
	assert_int_equal(*value, 4711);
	/* Empty entries, missing directories, and the same module again. */
	snprintf(path, sizeof path, "::/nonexistent:%s:", MODULES);
	assert_int_equal(module_load("test-module", "test_value", path, 1, (void **)&again, &err),
			 0);
	assert_ptr_equal(value, again);
	/* A module that cannot be loaded does not hide one that can. */
	snprintf(path, sizeof path, "%s:%s", dir, MODULES);
	assert_int_equal(module_load("test-module", "test_value", path, 0, (void **)&again, &err),
			 0);
}

static void refuses(void **state)
{
	static const struct {
		const char *name, *symbol, *path;
		const char *said[3];
		const char *why;
	} rows[] = {
		{"none",
		 "test_value",
		 MODULES,
		 {"not installed", MODULES, "BERTH_MODULE_PATH"},
		 "no file: where was looked"},
		{"none",
		 "test_value",
		 NULL,
		 {"not installed", "modules"},
		 "the same without a path"},
		{"test-module", "none", MODULES, {"no none", "another version"}, "no such symbol"},
		{"test-module",
		 "test_value",
		 dir,
		 {"cannot be loaded", dir},
		 "a file that is no library"},
		{"test-module-broken",
		 "test_value",
		 MODULES,
		 {"cannot be loaded", "test_symbol_of_a_library_that_is_not_there", "install"},
		 "a library that it needs is missing"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		void *out = (void *)&rows;
		struct error err = {0};
		int rc = module_load(rows[i].name, rows[i].symbol, rows[i].path, 0, &out, &err);

		if (rc != -ERR_UNAVAILABLE || out != (void *)&rows)
			fail_msg("%s: %d", rows[i].why, rc);
		for (size_t k = 0; k < 3 && rows[i].said[k]; k++)
			if (!strstr(err.text, rows[i].said[k]))
				fail_msg("%s: '%s' without '%s'", rows[i].why, err.text,
					 rows[i].said[k]);
	}
}

/* A list of directories that is longer than the message has room for. */
static void long_paths(void **state)
{
	char path[8192];
	struct error err = {0};
	void *out = NULL;

	for (size_t i = 0; i < sizeof path; i++)
		path[i] = i % 9 == 8 ? ':' : '/';
	path[sizeof path - 1] = '\0';
	assert_int_equal(module_load("none", "x", path, 0, &out, &err), -ERR_UNAVAILABLE);
	assert_non_null(strstr(err.text, "BERTH_MODULE_PATH"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loads),
		cmocka_unit_test(refuses),
		cmocka_unit_test(long_paths),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
