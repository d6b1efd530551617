/* SPDX-License-Identifier: BSD-3-Clause */
#include "../../reference/reference.h"
#include "op_network.h"

static int run(struct device_queue *queue, const struct op_call *call, struct error *err)
{
	return device_cpu_reference.run(queue, call, err);
}

const struct op_emitter op_emitter = {
	.device = &device_cpu_reference.device,
	.run = run,
	.adds = true,
	.checks_labels = true,
};
