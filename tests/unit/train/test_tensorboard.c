/* SPDX-License-Identifier: BSD-3-Clause */
/* Event records: TensorFlow's own bytes. tests/train/tensorboard.py reads whole files back. */
#include "../rows.h"

#include <math.h>

#include "train/tensorboard.h"

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

/* The longest of everything fits, and is cut where it is longer. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_records),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
