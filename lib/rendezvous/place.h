/* SPDX-License-Identifier: BSD-3-Clause */
/* A process's place from RANK, WORLD_SIZE and their kin. Inside the stage. */
#ifndef BERTH_RENDEZVOUS_PLACE_H
#define BERTH_RENDEZVOUS_PLACE_H

#include "rendezvous/ranks.h"

/* RANK and WORLD_SIZE must both be there; with more than one rank LOCAL_RANK too. local_size is 0
 * where LOCAL_WORLD_SIZE is missing; address "" and port 0 where MASTER_* are.
 * -ERR_DATA names the variables that contradict each other. */
int place_from_env(const struct env *env, struct ranks_place *out, struct error *err);

#endif
