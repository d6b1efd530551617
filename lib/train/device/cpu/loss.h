/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BERTH_TRAIN_DEVICE_CPU_LOSS_H
#define BERTH_TRAIN_DEVICE_CPU_LOSS_H

#include "train/device/device.h"

/* OP_CROSS_ENTROPY, OP_MSE or OP_LABEL_RANK on tensors in host memory, in the calling thread. Sums
 * are float64. Return 0, or -ERR_DATA for a label outside the classes. */
int host_loss(const struct op_call *call, struct error *err);

#endif
