/* SPDX-License-Identifier: BSD-3-Clause */
/* Event records, compared with TensorFlow's bytes. tests/train/events.py reads whole files back. */
#include "../rows.h"

#include <dirent.h>
#include <math.h>
#include <unistd.h>

#include "train/metrics/tensorboard.h"

static unsigned char record[TENSORBOARD_RECORD_MAX];

static void same(size_t size, const char *hex)
{
	char seen[2 * TENSORBOARD_RECORD_MAX + 1];

	for (size_t i = 0; i < size; i++)
		sprintf(seen + 2 * i, "%02x", record[i]);
	assert_string_equal(seen, hex);
}

static void test_records(void **state)
{
	struct tensorboard_scalar loss = {"loss", 1.5};

	same(tensorboard_version_record(0, record),
	     "1800000000000000a37f4b220900000000000000001a0d627261696e2e4576656e743a32eedf28a3");
	same(tensorboard_scalars_record(1, 7, &loss, 1, record),
	     "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000c03fde32709"
	     "7");
}

/* The longest values fit; longer ones are truncated. */
static void test_limits(void **state)
{
	static char tag[200];
	struct tensorboard_scalar many[TENSORBOARD_SCALARS_MAX];

	memset(tag, 'x', sizeof tag - 1);
	for (size_t i = 0; i < ROWS(many); i++)
		many[i] = (struct tensorboard_scalar){tag, NAN};
	assert_in_range(tensorboard_scalars_record(1e9, INT64_MIN, many, ROWS(many), record), 1000,
			sizeof record);
	assert_in_range(tensorboard_start_record(1e9, INT64_MAX, record), 30, 50);
}

static int by_name(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* TensorBoard reads files in the order of their names: those of runs that start within one second
 * must sort in order. */
static void test_names(void **state)
{
	char directory[] = "/tmp/berth-events.XXXXXX", path[400];
	struct dirent **names;

	assert_non_null(mkdtemp(directory));
	for (int i = 0; i < 4; i++) {
		struct tensorboard *tensorboard;
		struct error err = {0};
		struct tensorboard_scalar mark = {"mark", i};

		if (tensorboard_open(directory, i, &tensorboard, &err) ||
		    tensorboard_write(tensorboard, i + 1, &mark, 1, &err))
			fail_msg("%s", err.text);
		tensorboard_close(tensorboard);
	}
	assert_int_equal(scandir(directory, &names, by_name, alphasort), 4);
	for (int i = 0; i < 4; i++) {
		struct tensorboard_scalar mark = {"mark", i};
		size_t size = tensorboard_scalars_record(0, i + 1, &mark, 1, record), read;
		unsigned char seen[500];

		snprintf(path, sizeof path, "%s/%s", directory, names[i]->d_name);
		FILE *file = fopen(path, "re");

		assert_non_null(file);
		read = fread(seen, 1, sizeof seen, file);
		fclose(file);
		assert_true(read > size);
		/* The last record, except for its time and checksums. */
		assert_memory_equal(seen + read - size + 21, record + 21, size - 25);
		unlink(path);
		free(names[i]);
	}
	free(names);
	rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_records),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
