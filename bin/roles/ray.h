/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run --ray -- DRIVER is short for two roles: the service ray, one Ray node per node, ready
 * once all have joined; and the driver. ray.sh is what they execute. */
#ifndef BERTH_BIN_ROLES_RAY_H
#define BERTH_BIN_ROLES_RAY_H

#include "roles/role_options.h"

/* Replace *program by the line of the two roles, and set first, separator, words and variables of
 * options. -ERR_UNAVAILABLE. */
int ray_expand(struct role_options *options, char ***program, struct error *err);

#endif
