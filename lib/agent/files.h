/* SPDX-License-Identifier: BSD-3-Clause */
/* The files through which the ranks of a node and berth communicate, in dir, the agent's temporary
 * directory: BERTH_STOP_FILE, BERTH_REPORT and the plan. */
#ifndef BERTH_AGENT_FILES_H
#define BERTH_AGENT_FILES_H

#include <jansson.h>

#include "agent/uplink.h"

/* Make the stop file, with the word why in it. shared is the file that the user named, or NULL for
 * one in dir. A word that is there already remains, except that "failed" (nothing can be saved any
 * longer) replaces it. Reports an error as a note to uplink. */
void agent_stop_file_write(const char *dir, const char *shared, const char *why,
			   struct agent_uplink *uplink);
/* The JSON object that the program has written to BERTH_REPORT, a new reference; NULL if none. */
json_t *agent_report_read(const char *dir);
/* Write the plan to dir/plan.json. */
int agent_plan_write(const char *dir, const json_t *plan, struct error *err);
/* Remove the stop file and the report of an earlier attempt from dir. */
void agent_files_remove(const char *dir);

#endif
