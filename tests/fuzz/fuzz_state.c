/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a run in a checkpoint's metadata (berth.state). */
#include "fuzz.h"

#include "train/checkpoint/checkpoint.c" /* read_state is static */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct graph graph = {.model = "convnet", .classes = 10};
	char *text = fuzz_text(data, size);
	json_t *value = json_string(text);
	struct safetensors file = {0};
	struct train_state state = {0};
	struct error err = {0};
	bool foreign = false;

	free(text);
	if (!value)
		return 0; /* invalid UTF-8, which the file's own JSON rejects */
	file.metadata = json_pack("{s:s, s:s, s:o}", "berth.format", FORMAT, "berth.header_crc32c",
				  "0", "berth.state", value);
	CHECK(file.metadata);
	if (read_state("input", &file, &graph, &state, &foreign, &err)) {
		CHECK(err.code == ERR_DATA && *err.text);
		CHECK(!state.step && !state.world);
	} else {
		CHECK(state.step >= 0 && state.step <= CHECKPOINT_STEP_MAX);
		CHECK(state.world >= 1 && state.batch >= 1 && state.position >= 0);
		CHECK(state.update >= 1 && state.scale >= 0);
		CHECK(memchr(state.data, 0, sizeof state.data));
	}
	json_decref(file.metadata);
	return 0;
}
