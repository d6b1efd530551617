/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of CIFAR's two layouts, with as many records as the input holds. */
#include "fuzz.h"

#include "train/data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct cifar_layout *const layouts[] = {&cifar10_layout, &cifar100_test_layout};

	for (size_t i = 0; i < 2; i++) {
		struct cifar_layout layout = *layouts[i];
		size_t record = (size_t)layout.label_bytes + 3072;
		struct error err = {0};

		layout.records = (int)(size / record);
		if (cifar_check("input", data, size, &layout, &err)) {
			CHECK(err.code == ERR_DATA);
			continue;
		}
		CHECK(size == (size_t)layout.records * record);
		for (int n = 0; n < layout.records; n++)
			for (int k = 0; k < layout.label_bytes; k++)
				CHECK(data[(size_t)n * record + (size_t)k] < layout.label_ends[k]);
	}
	return 0;
}
