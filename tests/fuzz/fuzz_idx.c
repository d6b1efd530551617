/* SPDX-License-Identifier: BSD-3-Clause */
/* An unzipped IDX file, as images and as labels. */
#include "fuzz.h"

#include "train/data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (int rank = 1; rank <= 3; rank += 2) {
		const unsigned char *items;
		int64_t sizes[3] = {1, 1, 1};
		struct error err = {0};
		volatile unsigned char last;

		if (idx_parse("input", data, size, rank, sizes, &items, &err))
			continue;
		last = items[sizes[0] * sizes[1] * sizes[2] - 1];
		(void)last;
	}
	return 0;
}
