/* SPDX-License-Identifier: BSD-3-Clause */
/* --container and what goes with it, of a job and of a role. */
#ifndef BERTH_BIN_CONTAINER_OPTIONS_H
#define BERTH_BIN_CONTAINER_OPTIONS_H

#include "arguments.h"
#include "container/container.h"

/* They fill a struct container, which container_free frees; runtime is what the user wrote. */
extern const struct arguments_option container_options_table[];

/* Make image absolute, and runtime the path of a runtime on this machine; say where the image of
 * a URI will be. -ERR_USAGE, -ERR_INPUT or -ERR_UNAVAILABLE. */
int container_options_prepare(struct container *container, struct error *err);
#endif
