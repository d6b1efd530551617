/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists of visible devices, on a node with GPUs, MIG devices and another job's GPU: "NAME=LIST". A
 * refused list changes nothing; an accepted one allows no GPU that was not allowed before. */
#include "fuzz.h"

#include "inventory/inventory.h"

#define GPUS 6

static void make(struct inventory *inventory, struct inventory_gpu gpus[GPUS])
{
	static const char *const uuids[GPUS] = {
		"GPU-11111111-2222-3333-4444-555555555555",
		"GPU-11111111-2222-3333-4444-666666666666",
		"MIG-aaaaaaaa-2222-3333-4444-555555555555",
		"MIG-bbbbbbbb-2222-3333-4444-555555555555",
		NULL,
		"GPU-99999999-2222-3333-4444-555555555555",
	};

	for (int i = 0; i < GPUS; i++) {
		gpus[i] = (struct inventory_gpu){.index = i, .partition = -1, .vendor = 0x10de};
		snprintf(gpus[i].pci, sizeof gpus[i].pci, "0000:%02x:00.0", i == 3 ? 2 : i);
		gpus[i].uuid = (char *)uuids[i]; /* read only */
		gpus[i].allowed = i != 5;
	}
	gpus[2].mig = (char *)"MIG-GPU-77777777-2222-3333-4444-555555555555/1/0";
	gpus[3].mig = (char *)"MIG-GPU-77777777-2222-3333-4444-555555555555/2/0";
	gpus[2].partition = 0;
	gpus[3].partition = 1;
	gpus[4].vendor = 0x1002;
	*inventory = (struct inventory){.gpu_count = GPUS, .gpus = gpus};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *name = fuzz_text(data, size), *list = strchr(name, '=');
	struct inventory inventory;
	struct inventory_gpu gpus[GPUS];
	struct error err = {0};

	if (list) {
		*list++ = '\0';
		make(&inventory, gpus);
		int rc = inventory_allow_gpus(&inventory, name, list, &err);

		if (rc) {
			CHECK(rc == -ERR_DATA && *err.text);
			for (int i = 0; i < GPUS; i++)
				CHECK(gpus[i].allowed == (i != 5));
		}
		CHECK(!gpus[5].allowed);
	}
	free(name);
	return 0;
}
