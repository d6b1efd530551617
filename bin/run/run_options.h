/* SPDX-License-Identifier: BSD-3-Clause */
/* The options of berth run; berth train takes them too. */
#ifndef BERTH_BIN_RUN_RUN_OPTIONS_H
#define BERTH_BIN_RUN_RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "options.h"
#include "roles/role_options.h"
#include "run/run.h"

/* In the order of the words of --collapse. */
enum run_collapse { RUN_COLLAPSE_AUTO, RUN_COLLAPSE_ON, RUN_COLLAPSE_OFF };

/* What the options fill in: zero-initialise it, then call run_options_default. Strings point into
 * argv. The caller adds the program to request. */
struct run_options {
	struct run_request request;
	const char *master_addr;   /* NULL: chosen by the plan; not with --nnodes */
	const char *rdzv_endpoint; /* "HOST:PORT", with --nnodes only */
	bool has_node_rank, has_start_timeout;
	enum run_collapse collapse;
	bool label, json, verbose, nested;
	const char **env; /* "NAME=VALUE", env_count of them; malloced array */
	size_t env_count;
	struct role_options roles; /* borrowed by request */
};

void run_options_default(struct run_options *options);
/* After all options are read: check --nnodes, --node-rank, --rdzv-endpoint and --master-addr
 * against each other and pass them on to the request. -ERR_USAGE if they conflict. */
int run_options_by_hand(struct run_options *options, struct error *err);
/* The same for options that would have no effect together, of berth run and berth train. */
int run_options_conflicts(const struct run_options *options, struct error *err);
/* The same for options of the job that roles have themselves, or that need one program. */
int run_options_roles(const struct run_options *options, struct error *err);
void run_options_free(struct run_options *options);

/* They fill a struct run_options; its request.place is filled by options_table. */
extern const struct arguments_option run_options_table[];
/* --master-addr, --nnodes, --node-rank, --rdzv-endpoint, --port; they fill a struct run_options. */
extern const struct arguments_option run_rendezvous_table[];

#endif
