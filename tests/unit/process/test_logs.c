/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process/logs.h"
#include "base/file.h"
#include "../../support/wait.h"

/* ---- lines ---- */

/* What a splitter passed on, as text: each piece followed by '|' (newline) or '~' (none). */
struct heard {
	char text[1 << 20];
	size_t size, pieces, largest;
};

static void hear(void *context, const char *text, size_t size, bool newline)
{
	struct heard *heard = context;

	assert_true(heard->size + size + 1 < sizeof heard->text);
	memcpy(heard->text + heard->size, text, size);
	heard->size += size;
	heard->text[heard->size++] = newline ? '|' : '~';
	heard->pieces++;
	if (size > heard->largest)
		heard->largest = size;
}

static const struct {
	const char *chunks[6];
	const char *expected, *reason;
} splits[] = {
	{{"a\n"}, "a|", "one line"},
	{{"a\nb\n"}, "a|b|", "two lines in one read"},
	{{"a", "b", "\n"}, "ab|", "a line in three reads"},
	{{"a\nb", "c\nd"}, "a|bc|d~", "the rest is flushed at the end"},
	{{"\n\n"}, "||", "empty lines are lines"},
	{{"a", "\n", "\n"}, "a||", "a newline alone ends what was kept"},
	{{""}, "", "nothing"},
	{{"\xff\xfe\x01\n"}, "\xff\xfe\x01|", "any bytes pass"},
	{{"a\r\n"}, "a\r|", "CR is the reader's matter"},
};

static void test_split(void **state)
{
	for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
		struct bytes splitter = {0};
		static struct heard heard;

		memset(&heard, 0, sizeof heard);
		for (size_t k = 0; k < 6 && splits[i].chunks[k]; k++)
			logs_split(&splitter, splits[i].chunks[k], strlen(splits[i].chunks[k]),
				   hear, &heard);
		logs_split_end(&splitter, hear, &heard);
		if (strcmp(heard.text, splits[i].expected))
			fail_msg("%s: '%s', expected '%s'", splits[i].reason, heard.text,
				 splits[i].expected);
	}
}

static void test_split_nul(void **state)
{
	struct bytes splitter = {0};
	static struct heard heard;

	logs_split(&splitter, "a\0b", 3, hear, &heard);
	logs_split(&splitter, "\0\n", 2, hear, &heard);
	logs_split_end(&splitter, hear, &heard);
	assert_int_equal(heard.size, 5);
	assert_memory_equal(heard.text, "a\0b\0|", 5);
}

/* 300 KB without a newline, in pieces of odd sizes: the output is cut, bounded and complete. */
static void test_split_long(void **state)
{
	struct bytes splitter = {0};
	static struct heard heard;
	char chunk[1000];
	size_t fed = 0, letters = 0;

	memset(&heard, 0, sizeof heard);
	while (fed < 300000) {
		for (size_t i = 0; i < sizeof chunk; i++)
			chunk[i] = (char)('a' + (fed + i) % 26);
		logs_split(&splitter, chunk, sizeof chunk, hear, &heard);
		assert_true(splitter.room <= LOGS_LINE_MAX);
		fed += sizeof chunk;
	}
	logs_split(&splitter, "\n", 1, hear, &heard);
	logs_split_end(&splitter, hear, &heard);
	assert_true(heard.largest <= LOGS_LINE_MAX);
	assert_int_equal(heard.pieces, 300000 / LOGS_LINE_MAX + 1);
	for (size_t i = 0; i < heard.size; i++) {
		if (heard.text[i] == '~' || heard.text[i] == '|')
			continue;
		assert_int_equal(heard.text[i], 'a' + letters % 26);
		letters++;
	}
	assert_int_equal(letters, 300000);
	assert_int_equal(heard.text[heard.size - 1], '|');
	assert_int_equal(memchr(heard.text, '|', heard.size) == heard.text + heard.size - 1, 1);
}

/* One chunk that holds a line longer than the limit, and more lines after it. */
static void test_split_long_chunk(void **state)
{
	struct bytes splitter = {0};
	static struct heard heard;
	size_t size = LOGS_LINE_MAX * 2 + 10;
	char *chunk = malloc(size + 3);

	memset(&heard, 0, sizeof heard);
	memset(chunk, 'x', size);
	memcpy(chunk + size, "\ny\n", 3);
	logs_split(&splitter, chunk, size + 3, hear, &heard);
	logs_split_end(&splitter, hear, &heard);
	free(chunk);
	assert_int_equal(heard.pieces, 4);
	assert_int_equal(heard.largest, LOGS_LINE_MAX);
	assert_string_equal(heard.text + heard.size - 3, "|y|");
}

/* ---- files ---- */

static char dir[64];

static int make_dir(void **state)
{
	strcpy(dir, "/tmp/berth-test-logs-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	DIR *stream = opendir(dir);
	struct dirent *entry;
	char path[600];

	while (stream && (entry = readdir(stream))) {
		snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
		if (entry->d_name[0] != '.')
			unlink(path);
	}
	if (stream)
		closedir(stream);
	return rmdir(dir);
}

static char *read_log(const char *name)
{
	char path[128], *text;
	size_t size;
	struct error err = {0};

	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (file_read(path, 1 << 20, &text, &size, &err))
		fail_msg("%s", err.text);
	return text;
}

static const int ranks[] = {2, 12345};

static struct logs *open_logs(const char *in, int attempt, int keep)
{
	struct logs_options options = {
		.dir = in,
		.job_id = "77",
		.host = "n1",
		.attempt = attempt,
		.tail_lines = keep,
		.rank_count = 2,
		.ranks = ranks,
	};
	struct error err = {0};
	struct logs *logs;

	if (logs_open(&options, &logs, &err))
		fail_msg("%s", err.text);
	return logs;
}

static void say(struct logs *logs, int rank, int stream, const char *text, bool newline)
{
	logs_line(logs, (size_t)rank, stream, text, strlen(text), newline);
}

/* Wait until everything is in the files. */
static void settle(struct logs *logs)
{
	const char *lost;

	for (int i = 0; !logs_settled(logs, 0, &lost); i++) {
		assert_true(i < wait_ms(30000));
		usleep(1000);
	}
	assert_null(lost);
}

static void test_files(void **state)
{
	struct logs *logs = open_logs(dir, 0, 0);

	say(logs, 0, 1, "one", true);
	say(logs, 0, 2, "two", true);
	say(logs, 0, 1, "half", false);
	say(logs, 0, 2, "err", true);
	say(logs, 0, 1, "a", false);
	say(logs, 0, 1, "b", true);
	logs_flush(logs);
	settle(logs);

	/* The file has it before logs_free: flushed output survives a killed agent. */
	char *text = read_log("rank-0002.log"), *body = strchr(text, '\n');

	assert_non_null(body);
	assert_memory_equal(text, "==== berth: job 77 attempt 0 rank 2 host n1 ", 44);
	assert_string_equal(body + 1, "one\ntwo\nhalf\nerr\nab\n");
	free(text);
	logs_free(logs);

	/* The next attempt appends. */
	logs = open_logs(dir, 1, 0);
	say(logs, 0, 1, "again", true);
	logs_free(logs);
	text = read_log("rank-0002.log");
	assert_non_null(strstr(text, "\nab\n==== berth: job 77 attempt 1 rank 2 host n1 "));
	assert_string_equal(text + strlen(text) - 7, "\nagain\n");
	free(text);
	free(read_log("rank-12345.log"));
}

static void test_large(void **state)
{
	struct logs *logs = open_logs(dir, 0, 0);
	char *line = malloc(LOGS_LINE_MAX), *text;

	memset(line, 'z', LOGS_LINE_MAX);
	for (int i = 0; i < 3; i++) {
		logs_line(logs, 0, 1, line, LOGS_LINE_MAX, i == 2);
		say(logs, 1, 1, "short", true);
	}
	logs_free(logs);
	text = read_log("rank-0002.log");
	assert_int_equal(strlen(strchr(text, '\n') + 1), 3 * LOGS_LINE_MAX + 1);
	free(text);
	free(line);
}

static _Atomic int64_t clock_shift_ms;

int64_t __real_clock_now_ms(void);
int64_t __wrap_clock_now_ms(void);
int64_t __wrap_clock_now_ms(void)
{
	return __real_clock_now_ms() + clock_shift_ms;
}

static size_t allocated(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

/* Wait until the writer thread has filled the pipe. */
static void wait_for_full_pipe(const char *path)
{
	struct pollfd room = {open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC), POLLOUT, 0};

	assert_true(room.fd >= 0);
	for (int i = 0; poll(&room, 1, 0); i++) {
		assert_true(i < wait_ms(30000));
		usleep(1000);
	}
	close(room.fd);
}

/* A pipe that is not read stands for a file system that stalls. */
static void test_stall(void **state)
{
	const size_t lines = (32u << 20) / 1024; /* 32 MiB */
	static char text[64 << 20];
	char path[128], line[1024];
	struct pollfd ready = {.events = POLLIN};
	const char *lost = NULL, *problem, *marker;
	unsigned long long missing = 0;
	size_t size = 0, blocked = 0, waited = 0, before;
	struct logs *logs;
	ssize_t n;
	int fd;

	memset(line, 'x', sizeof line);
	snprintf(path, sizeof path, "%s/rank-0002.log", dir);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	logs = open_logs(dir, 0, 0);
	before = allocated();
	for (size_t i = 0; i < lines; i++) {
		if (!blocked && logs_full(logs)) {
			wait_for_full_pipe(path);
			blocked = i;
		}
		/* Of the pipe's 64 lines some may have been written since. */
		if (!waited && blocked && i == blocked + 100) {
			waited = i;
			assert_true(logs_full(logs));
			assert_null(logs_problem(logs));
			/* The rank does not wait any longer. The write may begin after the first
			 * shift. */
			for (int k = 0; logs_full(logs); k++) {
				assert_true(k < wait_ms(30000));
				clock_shift_ms += LOGS_STALL_MS + 1000;
				usleep(1000);
			}
			problem = logs_problem(logs);
			assert_non_null(problem);
			assert_non_null(strstr(problem, "takes longer than 10 s"));
		}
		logs_line(logs, 0, 1, line, sizeof line - 1, true);
		logs_flush(logs);
	}
	assert_in_range(waited, 4000, 4300); /* 4 MiB and what the pipe holds */
	assert_true(allocated() - before < 16 << 20);
	assert_false(logs_settled(logs, 0, &lost));
	assert_true(logs_settled(logs, LOGS_END_MS, &lost));
	assert_non_null(strstr(lost, "their last "));
	/* Writing works again. */
	ready.fd = logs_fd(logs);
	while (!logs_settled(logs, 0, &lost))
		while ((n = read(fd, text + size, 65536)) > 0 || !poll(&ready, 1, 1))
			size += n > 0 ? (size_t)n : 0;
	while ((n = read(fd, text + size, 65536)) > 0)
		size += (size_t)n;
	assert_false(logs_full(logs));
	say(logs, 0, 1, "end", true);
	logs_flush(logs);
	settle(logs);
	size += (size_t)read(fd, text + size, 65536);
	text[size] = '\0';
	marker = strstr(text, "\n==== berth: ");
	assert_non_null(marker);
	assert_int_equal(
		sscanf(marker, "\n==== berth: %llu bytes are missing here: writing", &missing), 1);
	assert_string_equal(text + size - 4, "end\n");
	assert_int_equal((size_t)(marker - strchr(text, '\n') - 1) + missing, lines * 1024);
	clock_shift_ms = 0;
	logs_free(logs);
	close(fd);
	unlink(path);
}

static void test_disk_full(void **state)
{
	char path[128];

	if (access("/dev/full", W_OK))
		skip();
	snprintf(path, sizeof path, "%s/rank-0002.log", dir);
	assert_int_equal(symlink("/dev/full", path), 0);

	struct logs *logs = open_logs(dir, 0, 0);
	const char *const *last;

	for (int i = 0; i < 1000; i++) {
		say(logs, 0, 1, "lost", true);
		say(logs, 1, 1, "kept", true);
		logs_flush(logs);
	}

	settle(logs);

	const char *problem = logs_problem(logs);

	assert_non_null(problem);
	assert_non_null(strstr(problem, "rank-0002.log: No space left on device"));
	assert_null(logs_problem(logs));
	assert_int_equal(logs_tail(logs, 0, &last), LOGS_TAIL_LINES);
	logs_free(logs);

	char *text = read_log("rank-12345.log");

	assert_int_equal(strlen(strchr(text, '\n') + 1), 5000);
	free(text);
}

static const struct {
	const char *dir, *reason;
} bad_dirs[] = {
	{"/dev/null/logs", "below a file"},
	{"/proc/berth-test", "a file system that allows no new directories"},
	{"/sys/kernel", "a directory that allows no new files"},
	{"", "no name"},
};

static void test_bad_dir(void **state)
{
	for (size_t i = 0; i < sizeof bad_dirs / sizeof *bad_dirs; i++) {
		struct logs_options options = {
			.dir = bad_dirs[i].dir, .rank_count = 2, .ranks = ranks};
		struct logs *logs = NULL;
		struct error err = {0};

		if (logs_check_dir(bad_dirs[i].dir, &err) != -ERR_OUTPUT)
			fail_msg("%s: '%s' accepted", bad_dirs[i].reason, bad_dirs[i].dir);
		assert_true(strlen(err.text) > 10);
		assert_int_equal(logs_open(&options, &logs, &err), -ERR_OUTPUT);
		assert_null(logs);
	}

	/* A directory has the name of a rank's file. */
	struct logs_options options = {.dir = dir, .rank_count = 2, .ranks = ranks};
	struct logs *logs;
	struct error err = {0};
	char path[128];

	snprintf(path, sizeof path, "%s/rank-12345.log", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(logs_open(&options, &logs, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "rank-12345.log"));
	rmdir(path);
}

static void test_folder_is_made(void **state)
{
	char deep[128], path[256];
	struct error err = {0};

	snprintf(deep, sizeof deep, "%s/a/b", dir);
	assert_int_equal(logs_check_dir(deep, &err), 0);

	struct logs *logs = open_logs(deep, 0, 0);

	logs_free(logs);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/rank-%04d.log", deep, ranks[i]);
		assert_int_equal(unlink(path), 0);
	}
	/* No other file was left in it. */
	assert_int_equal(rmdir(deep), 0);
	snprintf(deep, sizeof deep, "%s/a", dir);
	assert_int_equal(rmdir(deep), 0);
}

/* ---- last lines ---- */

static void expect_last(struct logs *logs, size_t rank, const char *expected)
{
	const char *const *lines;
	size_t count = logs_tail(logs, rank, &lines);
	char text[8192] = "";

	for (size_t i = 0; i < count; i++) {
		strcat(text, lines[i]);
		strcat(text, "|");
	}
	assert_string_equal(text, expected);
}

static void test_last(void **state)
{
	struct logs *logs = open_logs(NULL, 0, 3);

	expect_last(logs, 0, "");
	say(logs, 0, 1, "1", true);
	expect_last(logs, 0, "1|");
	expect_last(logs, 1, "");
	say(logs, 0, 2, "2", true);
	say(logs, 0, 1, "", true);
	say(logs, 0, 1, "3", true);
	expect_last(logs, 0, "1|2|3|");
	say(logs, 0, 1, "4", false);
	expect_last(logs, 0, "2|3|4|");
	say(logs, 0, 1, "4", true);
	say(logs, 0, 1, "  ", true);
	expect_last(logs, 0, "3|44|");
	say(logs, 0, 1, "\x1b[2Jclear\x07", true);
	expect_last(logs, 0, "3|44|?[2Jclear?|");
	say(logs, 0, 2, "10%\r20%\r30%\r", true);
	expect_last(logs, 0, "44|?[2Jclear?|30%|");
	logs_free(logs);
}

static void test_last_is_cut(void **state)
{
	struct logs *logs = open_logs(NULL, 0, 2);
	char *line = malloc(100000);
	const char *const *lines;

	memset(line, 'q', 100000);
	logs_line(logs, 0, 1, line, 50000, false);
	logs_line(logs, 0, 1, line, 50000, true);
	free(line);
	assert_int_equal(logs_tail(logs, 0, &lines), 1);
	assert_int_equal(strlen(lines[0]), LOGS_TAIL_LINE_BYTES + 3);
	assert_string_equal(lines[0] + LOGS_TAIL_LINE_BYTES, "...");
	logs_free(logs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_split_nul),
		cmocka_unit_test(test_split_long),
		cmocka_unit_test(test_split_long_chunk),
		cmocka_unit_test_setup_teardown(test_files, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_large, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_stall, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_disk_full, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_bad_dir, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_folder_is_made, make_dir, remove_dir),
		cmocka_unit_test(test_last),
		cmocka_unit_test(test_last_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
