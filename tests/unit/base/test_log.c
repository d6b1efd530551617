/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines and error texts. */
#include "../rows.h"

#include <errno.h>
#include <regex.h>
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
	return log_configure(NULL, NULL);
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

/* Text of ranks, of tools and of other hosts in berth's messages. One blank stands for each byte.
 */
static const struct {
	const char *text, *shown, *why;
} quoted[] = {
	{"a\033[2Jb\177c", "a [2Jb c", "C0 and DEL"},
	{"a\xc2\x9b\x32Jb", "a  2Jb", "CSI of C1, in UTF-8"},
	{"\xc2\x80\xc2\x9f", "    ", "the ends of C1"},
	{"a\x9b\x32Jb\x80\x9f", "a 2Jb  ", "C1 as single bytes"},
	{"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
	 "bytes of C1 in other characters"},
	{"\xc2\xa0\xdf\x9b\xa0\xff", "\xc2\xa0\xdf\x9b\xa0\xff", "no C1"},
	{"a\xe2\x80\xaegpj", "a   gpj", "right-to-left override"},
	{"\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xaa", "         ", "marks and embeddings"},
	{"\xe2\x81\xa6\xe2\x81\xa9\xd8\x9c", "        ", "isolates, Arabic letter mark"},
	{"\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\xa5\xd8\x9b",
	 "\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\xa5\xd8\x9b", "their neighbours"},
	{"a\xe2\x80", "a\xe2 ", "cut in a character"},
};

static void quotes(void **state)
{
	char line[200];

	for (size_t i = 0; i < ROWS(quoted); i++) {
		snprintf(line, sizeof line, "berth: note: %s\n", quoted[i].shown);
		log_user(LOG_NOTE, "%s", quoted[i].text);
		const char *shown = written();

		if (strcmp(shown, line))
			fail_msg("%s: %s", quoted[i].why, shown);
	}
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

/* ---- BERTH_LOG ---- */

/* What two modules write afterwards. */
static const struct {
	const char *words;
	enum log_detail agent, pmix;
} good_words[] = {
	{NULL, LOG_OFF, LOG_OFF},
	{"", LOG_OFF, LOG_OFF},
	{"info", LOG_INFO, LOG_INFO},
	{"debug", LOG_MESSAGES, LOG_MESSAGES},
	{"pmix", LOG_OFF, LOG_MESSAGES},
	{"agent,pmix", LOG_MESSAGES, LOG_MESSAGES},
	{"info,pmix", LOG_INFO, LOG_MESSAGES},
	{"pmix,info", LOG_INFO, LOG_MESSAGES},
	{"debug,info", LOG_MESSAGES, LOG_MESSAGES}, /* the more detailed counts */
	{"train,train", LOG_OFF, LOG_OFF},
};
/* The word that err quotes. */
static const struct {
	const char *words, *quoted;
} bad_words[] = {
	{"inf", "'inf'"},
	{"infos", "'infos'"},
	{"DEBUG", "'DEBUG'"},
	{"1", "'1'"},
	{",", "''"},
	{"agent,", "''"},
	{"agent,,pmix", "''"},
	{"agent pmix", "'agent pmix'"},
	{"agent,gpu", "'gpu'"},
	{" info", "' info'"},
};

static void words(void **state)
{
	struct error err = {0};

	for (size_t i = 0; i < ROWS(good_words); i++) {
		assert_int_equal(log_configure(good_words[i].words, &err), 0);
		assert_int_equal(log_details[LOG_AGENT], good_words[i].agent);
		assert_int_equal(log_details[LOG_PMIX], good_words[i].pmix);
	}
	assert_true(log_is_on()); /* train alone */
	for (size_t i = 0; i < ROWS(bad_words); i++) {
		assert_int_equal(log_configure("agent", &err), 0);
		assert_int_equal(log_configure(bad_words[i].words, &err), -ERR_DATA);
		assert_non_null(strstr(err.text, "BERTH_LOG: unknown word"));
		assert_non_null(strstr(err.text, bad_words[i].quoted));
		assert_non_null(strstr(err.text, "info, debug, alloc, "));
		assert_non_null(strstr(err.text, ", train "));
		assert_int_equal(log_details[LOG_AGENT], LOG_MESSAGES); /* as before */
		assert_int_equal(log_details[LOG_PMIX], LOG_OFF);
	}
	log_configure(NULL, NULL);
	assert_false(log_is_on());
}

static bool matches(const char *text, const char *pattern)
{
	regex_t regex;
	bool found;

	assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
	found = !regexec(&regex, text, 0, NULL, 0);
	regfree(&regex);
	return found;
}

static int evaluated(void)
{
	fail();
	return 0;
}

#define TIME "^berth: 20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "

static void decisions(void **state)
{
	const char *line;

	log_info(LOG_AGENT, "off: %d", evaluated());
	log_debug(LOG_AGENT, "off: %d", evaluated());
	assert_string_equal(written(), "");
	log_configure("info", NULL);
	log_debug(LOG_AGENT, "only with debug: %d", evaluated());
	log_set_identity("n1", -1);
	errno = ENOENT;
	log_info(LOG_AGENT, "two\nlines \033[2J%m");
	assert_int_equal(errno, ENOENT);
	line = written();
	assert_true(
		matches(line, TIME "n1 info agent: two lines  \\[2JNo such file or directory\n$"));
	assert_true(log_is_line(line));
	log_configure("pmix", NULL);
	log_set_identity("n2", 7);
	log_info(LOG_AGENT, "another module: %d", evaluated());
	log_debug(LOG_PMIX, "fence %d", 3);
	assert_true(matches(written(), TIME "n2 rank 7 debug pmix: fence 3\n$"));
	/* Without a name, the host's. */
	log_set_identity(NULL, -1);
	log_info(LOG_PMIX, "x");
	assert_true(matches(written(), TIME "[^ ]+ info pmix: x\n$"));
}

static void foreign_lines(void **state)
{
	static const char *const rows[] = {
		"",
		"berth: ",
		"berth: n1 note agent: x",
		"berth: 2026-11-23T04:55:35.123 n1 x",
		"srun: 2026-11-23T04:55:35.123Z n1 info agent: x",
		"berth: 2026-11-23T04:55:3x.123Z n1 info agent: x",
	};

	for (size_t i = 0; i < ROWS(rows); i++)
		assert_false(log_is_line(rows[i]));
	assert_true(log_is_line("berth: 2026-11-23T04:55:35.123Z n1 info agent: x"));
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
		cmocka_unit_test_setup_teardown(quotes, take_stderr, give_stderr),
		cmocka_unit_test_setup_teardown(levels, take_stderr, give_stderr),
		cmocka_unit_test_setup_teardown(long_lines, take_stderr, give_stderr),
		cmocka_unit_test_setup_teardown(words, take_stderr, give_stderr),
		cmocka_unit_test_setup_teardown(decisions, take_stderr, give_stderr),
		cmocka_unit_test(foreign_lines),
		cmocka_unit_test(errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
