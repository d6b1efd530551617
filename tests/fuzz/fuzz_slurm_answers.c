/* SPDX-License-Identifier: BSD-3-Clause */
/* What Slurm's tools print. The first byte selects the reader:
 *   T  a time left   J  the time left of a job   C  a configured time   G  scontrol's GPUs of a job
 * S  a batch script's --no-kill */
#include "fuzz.h"

#include "alloc/slurm.h"

/* "n[1-999]" and more: fuzz_hostlist tries such lists, which only take long here. */
static bool is_long_range(const char *text)
{
	size_t digits = 0;
	bool inside = false;

	for (; *text && digits < 3; text++) {
		inside = *text == '[' || (inside && *text != ']');
		digits = inside && *text >= '0' && *text <= '9' ? digits + 1 : 0;
	}
	return digits == 3;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char job[] = "7", first[] = "n1", second[] = "n2";
	struct alloc_node nodes[] = {{first, 1, -1}, {second, 1, -1}};
	struct alloc alloc = {.source = ALLOC_FROM_SLURM,
			      .job_id = job,
			      .node_count = 2,
			      .nodes = nodes,
			      .this_node = -1};
	struct error err = {0};
	int64_t seconds = 0;
	char *text;

	if (!size)
		return 0;
	text = fuzz_text(data + 1, size - 1);
	if (*data == 'T') {
		int rc = slurm_time_left(text, &seconds, &err);

		CHECK(rc == 1 || (rc < 0 && *err.text) || (!rc && seconds >= 0));
	} else if (*data == 'J') {
		int rc = slurm_job_time_left(text, &seconds);

		CHECK(rc == 1 || rc < 0 || seconds > -1000000000);
	} else if (*data == 'C') {
		CHECK(slurm_config_seconds(text, "KillWait") >= -1);
	} else if (*data == 'G' && !is_long_range(text)) {
		slurm_job_gpus(text, &alloc);
		for (int i = 0; i < 2; i++)
			CHECK(nodes[i].gpus >= -1);
	} else if (*data == 'S') {
		slurm_script_no_kill(text);
	}
	free(text);
	return 0;
}
