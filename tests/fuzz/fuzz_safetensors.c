/* SPDX-License-Identifier: BSD-3-Clause */
/* A checkpoint file. */
#include "fuzz.h"

#include "train/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct safetensors file;
	struct error err = {0};
	volatile unsigned char last;

	if (safetensors_parse("input", data, size, &file, &err))
		return 0;
	/* All data that the header lists can be read. */
	for (size_t i = 0; i < file.count; i++)
		if (file.tensors[i].size_bytes)
			last = ((const unsigned char *)file.tensors[i]
					.data)[file.tensors[i].size_bytes - 1];
	(void)last;
	safetensors_free(&file);
	return 0;
}
