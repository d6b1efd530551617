/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines and error texts. */
#include "../rows.h"

#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

static int kept_stderr, ends[2];

static int take_stderr(void **state)
{
	kept_stderr = dup(STDERR_FILENO);
	return kept_stderr < 0 || pipe(ends) || dup2(ends[1], STDERR_FILENO) < 0 ? -1 : 0;
}

static int give_stderr(void **state)
{
	dup2(kept_stderr, STDERR_FILENO);
	close(kept_stderr);
	close(ends[0]);
	close(ends[1]);
	log_set_identity(NULL, -1);
	log_set_level(LOG_NOTE);
	return 0;
}

/* The output since the last call; "" if there is none. */
static const char *written(void)
{
	static char text[8192];

	(void)!write(ends[1], "", 1); /* reads never block */
	ssize_t n = read(ends[0], text, sizeof text - 1);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void lines(void **state)
{
	log_line(LOG_NOTE, "agent", "%d ranks", 2);
	assert_string_equal(written(), "berth: note agent: 2 ranks\n");
	log_set_identity("n1", -1);
	log_line(LOG_WARNING, "agent", "x");
	assert_string_equal(written(), "berth: n1 warning agent: x\n");
	log_set_identity("n1", 3);
	errno = ENOENT;
	log_line(LOG_ERROR, "train", "no data: %m");
	assert_string_equal(written(), "berth: n1 rank 3 error train: no data: No such file or "
				       "directory\n");
	assert_int_equal(errno, ENOENT);
	log_line(LOG_ERROR, "train", "two\nlines\r\n");
	assert_string_equal(written(), "berth: n1 rank 3 error train: two lines  \n");
}

static void levels(void **state)
{
	log_line(LOG_DEBUG, "agent", "hidden at first");
	assert_string_equal(written(), "");
	log_set_level(LOG_DEBUG);
	log_line(LOG_DEBUG, "agent", "shown");
	assert_string_equal(written(), "berth: debug agent: shown\n");
	log_set_level(LOG_ERROR);
	log_line(LOG_WARNING, "agent", "hidden");
	assert_string_equal(written(), "");
}

static void long_lines(void **state)
{
	char text[5000], host[1000];

	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	log_line(LOG_ERROR, "agent", "%s", text);
	const char *line = written();
	size_t size = strlen(line);

	assert_true(size > 1000 && size < sizeof text);
	assert_string_equal(line + size - 4, "...\n");
	memset(host, 'h', sizeof host - 1);
	host[sizeof host - 1] = '\0';
	log_set_identity(host, 1);
	log_line(LOG_ERROR, "agent", "%s", text);
	line = written();
	assert_string_equal(line + strlen(line) - 4, "...\n");
}

static void errors(void **state)
{
	struct error err = {0};
	char text[3000];

	assert_int_equal(error_set(&err, ERR_DATA, "line %d", 3), -ERR_DATA);
	assert_int_equal(err.code, ERR_DATA);
	assert_int_equal(error_prefix(&err, "file %s", "x"), -ERR_DATA);
	assert_string_equal(err.text, "file x: line 3");
	/* The old text may be an argument of the new one. */
	assert_int_equal(error_set(&err, ERR_IO, "again: %s", err.text), -ERR_IO);
	assert_string_equal(err.text, "again: file x: line 3");
	/* A text that is too long is cut and never overruns the array. */
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	error_set(&err, ERR_DATA, "%s", text);
	assert_int_equal(strlen(err.text), sizeof err.text - 1);
	error_prefix(&err, "%s", text);
	assert_int_equal(strlen(err.text), sizeof err.text - 1);
	/* The caller may pass no error. */
	assert_int_equal(error_set(NULL, ERR_DATA, "x"), -ERR_DATA);
	assert_int_equal(error_prefix(NULL, "x"), -ERR_INTERNAL);
	assert_int_equal(error_memory(&err, "a list"), -ERR_UNAVAILABLE);
	assert_non_null(strstr(err.text, "a list"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lines, take_stderr, give_stderr),
		cmocka_unit_test_setup_teardown(levels, take_stderr, give_stderr),
		cmocka_unit_test_setup_teardown(long_lines, take_stderr, give_stderr),
		cmocka_unit_test(errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
