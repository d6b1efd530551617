/* SPDX-License-Identifier: BSD-3-Clause */
/* The text of a message between controller and agents; the first byte is its type. */
#include "fuzz.h"

#include "overlay/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = size ? fuzz_text(data + 1, size - 1) : NULL;
	struct wire_message wire = {
		.type = size ? data[0] : 0, .text = text, .text_size = text ? strlen(text) : 0};
	struct message message;
	struct error err = {0};
	int rc = message_read(&wire, &message, &err);

	CHECK(rc ? err.code == ERR_DATA && *err.text : !err.code);
	if (!rc && wire.type == MESSAGE_PROBED) {
		int reached[4] = {0}, shared[4] = {-1, -1, -1, -1}, stalled[4] = {-1, -1, -1, -1};
		size_t nodes = 0;

		message_add_probed(&message.probed, 8, 4, reached, shared, stalled, &nodes);
		CHECK(nodes <= 8);
		for (int i = 0; i < 4; i++)
			CHECK(shared[i] >= -1 && shared[i] < 8 && stalled[i] >= -1 &&
			      stalled[i] < 8);
	}
	message_free(&message);
	free(text);
	return 0;
}
