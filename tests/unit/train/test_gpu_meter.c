/* SPDX-License-Identifier: BSD-3-Clause */
/* A GPU's readings from a fake libnvidia-ml, reduced over ranks, and in a row of metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/device/cuda/gpu_meter.h"
#include "train/metrics/metrics.h"

#define FIRST "GPU-000000f0-aaaa-bbbb-cccc-dddddddddddd"

static void read_as(const char *mode, struct gpu_reading *out)
{
	if (mode)
		setenv("BERTH_FAKE_NVML", mode, 1);
	else
		unsetenv("BERTH_FAKE_NVML");

	struct gpu_meter *meter = gpu_meter_open(FIRST, FAKE_NVML);

	assert_non_null(meter);
	gpu_meter_read(meter, out);
	gpu_meter_close(meter);
}

static void test_read(void **state)
{
	struct gpu_reading reading;

	read_as(NULL, &reading);
	assert_true(reading.utilization == 87 && reading.power_w == 612.5);
	assert_true(reading.memory_bytes == 40.0 * (1 << 30));
	for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
		assert_false(reading.throttled[why]);
	read_as("slow", &reading);
	assert_true(reading.throttled[GPU_THROTTLE_POWER] &&
		    reading.throttled[GPU_THROTTLE_HW_THERMAL]);
	assert_false(reading.throttled[GPU_THROTTLE_THERMAL] ||
		     reading.throttled[GPU_THROTTLE_POWER_BRAKE] ||
		     reading.throttled[GPU_THROTTLE_HW]);
	/* A MIG device has no utilization or power reading of its own. */
	read_as("mig", &reading);
	assert_true(isnan(reading.utilization) && isnan(reading.power_w) &&
		    reading.memory_bytes > 0);

	/* It is identified by its own UUID. */
	struct gpu_meter *meter =
		gpu_meter_open("GPU-00000012-1111-2222-3333-444444444444", FAKE_NVML);

	assert_non_null(meter);
	gpu_meter_read(meter, &reading);
	gpu_meter_close(meter);
	assert_true(isnan(reading.utilization) && isnan(reading.power_w) &&
		    reading.memory_bytes == 0);
	assert_null(gpu_meter_open("GPU-00000013-1111-2222-3333-444444444444", FAKE_NVML));
}

static void test_holders(void **state)
{
	char text[256], expected[64];

	setenv("BERTH_FAKE_NVML", "held", 1);
	gpu_processes_text(FIRST, FAKE_NVML, text, sizeof text);
	snprintf(expected, sizeof expected, "held by pid %d (", (int)getppid());
	if (strncmp(text, expected, strlen(expected)) || !strstr(text, ", 3072 MiB)"))
		fail_msg("%s, expected %s..., 3072 MiB)", text, expected);
	/* Too little room: the text is truncated, and nothing is written beyond it. */
	memset(text, 'x', sizeof text);
	gpu_processes_text(FIRST, FAKE_NVML, text, 12);
	assert_string_equal(text, "held by pid");
	assert_int_equal(text[12], 'x');
	unsetenv("BERTH_FAKE_NVML");
	gpu_processes_text(FIRST, FAKE_NVML, text, sizeof text);
	assert_string_equal(text, "");
	gpu_processes_text(FIRST, "libno-such-nvml.so", text, sizeof text);
	assert_string_equal(text, "");
}

static void test_absent(void **state)
{
	struct gpu_reading reading;

	unsetenv("BERTH_FAKE_NVML");
	assert_null(gpu_meter_open(FIRST, "libno-such-nvml.so"));
	assert_null(gpu_meter_open("GPU-of-another-machine", FAKE_NVML));
	setenv("BERTH_FAKE_NVML", "driver", 1);
	assert_null(gpu_meter_open(FIRST, FAKE_NVML));
	gpu_meter_read(NULL, &reading);
	assert_true(isnan(reading.utilization));
	gpu_meter_close(NULL);
}

static void test_over_ranks(void **state)
{
	struct gpu_reading ranks[3] = {
		{.utilization = 90, .memory_bytes = 1e9, .power_w = 300},
		{.utilization = 0,
		 .memory_bytes = 3e9,
		 .power_w = 500,
		 .throttled[GPU_THROTTLE_POWER] = true},
		{.utilization = NAN,
		 .memory_bytes = NAN,
		 .power_w = NAN,
		 .throttled[GPU_THROTTLE_HW] = true},
	};
	double most[GPU_READING_VALUES], values[GPU_READING_VALUES];
	struct gpu_reading all;

	gpu_reading_pack(&ranks[0], most);
	for (int r = 1; r < 3; r++) {
		gpu_reading_pack(&ranks[r], values);
		for (int i = 0; i < GPU_READING_VALUES; i++)
			most[i] = fmax(most[i], values[i]);
	}
	gpu_reading_unpack(most, &all);
	assert_true(all.utilization == 0 && all.memory_bytes == 3e9 && all.power_w == 500);
	assert_true(all.throttled[GPU_THROTTLE_POWER] && all.throttled[GPU_THROTTLE_HW]);
	assert_false(all.throttled[GPU_THROTTLE_THERMAL]);
	gpu_reading_pack(&ranks[2], most);
	gpu_reading_unpack(most, &all);
	assert_true(isnan(all.utilization) && isnan(all.memory_bytes) && isnan(all.power_w));
}

static void test_row(void **state)
{
	char directory[] = "/tmp/berth-meter-XXXXXX", path[64];
	struct gpu_reading reading = {.utilization = 87,
				      .memory_bytes = 1 << 20,
				      .power_w = NAN,
				      .throttled[GPU_THROTTLE_POWER] = true};
	struct metrics_row row = {.split = SPLIT_TRAIN,
				  .step = 1,
				  .gpu = &reading,
				  .host_ms = 1.5,
				  .overlap = true,
				  .comm_busy_ms = 4,
				  .comm_exposed_ms = 1};
	struct metrics *metrics;
	struct error err = {0};
	char *text;
	size_t size;

	assert_non_null(mkdtemp(directory));
	assert_int_equal(metrics_open(directory, -1, false, &metrics, &err), 0);
	assert_int_equal(metrics_write(metrics, &row, &err), 0);
	metrics_close(metrics);
	snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
	assert_int_equal(file_read(path, 1 << 16, &text, &size, &err), 0);
	assert_non_null(strstr(
		text, "\"gpu_use\": 87.0, \"gpu_memory_bytes\": 1048576.0, "
		      "\"gpu_power_w\": null, \"gpu_slow\": [\"power-cap\"], \"host_ms\": 1.5"));
	assert_non_null(strstr(text, "\"comm_ms\": 4.0, \"comm_hidden\": 0.75"));
	free(text);
	snprintf(path, sizeof path, "rm -r %s", directory);
	assert_int_equal(system(path), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),   cmocka_unit_test(test_holders),
		cmocka_unit_test(test_absent), cmocka_unit_test(test_over_ranks),
		cmocka_unit_test(test_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
