/* SPDX-License-Identifier: BSD-3-Clause */
/* A lease file of a checkpoint directory. */
#include "fuzz.h"

#include "train/checkpoint/lease_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct lease_record record = {0}, again = {0};
	char name[600], *text;

	lease_record_parse((const char *)data, size, &record);
	lease_record_name(&record, name, sizeof name);
	if (!record.readable)
		return 0;
	/* What was read can be written and read again. */
	text = lease_record_text(&record);
	if (!text)
		return 0; /* a string was cut within a character */
	lease_record_parse(text, strlen(text), &again);
	CHECK(again.readable && !again.released && again.pid == record.pid);
	CHECK(!strcmp(again.token, record.token) && !strcmp(again.job, record.job));
	free(text);
	return 0;
}
