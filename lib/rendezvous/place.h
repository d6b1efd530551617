/* SPDX-License-Identifier: BSD-3-Clause */
/* A process's place from RANK, WORLD_SIZE and related variables. Private to this stage. */
#ifndef BERTH_RENDEZVOUS_PLACE_H
#define BERTH_RENDEZVOUS_PLACE_H

#include "rendezvous/ranks.h"

/* RANK and WORLD_SIZE are both required; with more than one rank LOCAL_RANK is, too. local_size is
 * 0 if LOCAL_WORLD_SIZE is missing; address is "" and port 0 if MASTER_* are. Return 0, or
 * -ERR_DATA naming the variables that contradict each other. */
int place_from_env(const struct env *env, struct ranks_place *out, struct error *err);

#endif
