/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret in the home directory, when another machine creates it at the same moment. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "overlay/secret.h"

#define OTHER "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static bool other_is_first;

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);

int __wrap_link(const char *from, const char *to)
{
	if (other_is_first) {
		int fd = open(to, O_CREAT | O_EXCL | O_WRONLY, 0600);

		assert_true(fd >= 0);
		assert_int_equal(write(fd, OTHER "\n", 65), 65);
		close(fd);
	}
	return __real_link(from, to);
}

static void test_made(void **state)
{
	static const struct {
		bool other_is_first, made;
	} rows[] = {{false, true}, {true, false}};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char home[] = "/tmp/secret-XXXXXX", path[300], text[65];
		struct env *env = env_new();
		struct secret secret, again;
		struct error err = {0};
		bool made = false;

		assert_non_null(mkdtemp(home));
		assert_int_equal(env_set(env, "HOME", home, ENV_FROM_USER, NULL, &err), 0);
		other_is_first = rows[i].other_is_first;
		if (secret_file_read(env, true, &secret, &made, path, sizeof path, &err))
			fail_msg("row %zu: %s", i, err.text);
		assert_int_equal(made, rows[i].made);
		secret_format(&secret, text);
		assert_int_equal(!strcmp(text, OTHER), rows[i].other_is_first);

		/* A later run reads the same secret, and has not created it. */
		assert_int_equal(
			secret_file_read(env, true, &again, &made, path, sizeof path, &err), 0);
		assert_false(made);
		assert_memory_equal(&secret, &again, sizeof secret);

		/* Only the secret is left there. */
		assert_int_equal(unlink(path), 0);
		for (int up = 0; up < 3; up++) {
			*strrchr(path, '/') = '\0';
			assert_int_equal(rmdir(path), 0);
		}
		env_free(env);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_made)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
