CREATE TABLE `alembic_version` (
  `version_num` varchar(32) NOT NULL,
  PRIMARY KEY (`version_num`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
CREATE TABLE `audit` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `at` double NOT NULL,
  `who` varchar(255) NOT NULL,
  `action` varchar(1000) NOT NULL,
  `status` int(11) NOT NULL,
  `code` int(11) DEFAULT NULL,
  `detail` longtext NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `dataset` (
  `namespace` varchar(128) NOT NULL,
  `name` varchar(255) NOT NULL,
  `document` longtext NOT NULL,
  `created_at` double NOT NULL,
  PRIMARY KEY (`namespace`,`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `dataset_grant` (
  `namespace` varchar(128) NOT NULL,
  `name` varchar(255) NOT NULL,
  `node` varchar(128) NOT NULL,
  `granted_at` double NOT NULL,
  `granted_by` varchar(255) NOT NULL,
  `reason` varchar(1000) NOT NULL,
  `expires_at` double DEFAULT NULL,
  `revoked_at` double DEFAULT NULL,
  `revoked_by` varchar(255) NOT NULL,
  PRIMARY KEY (`namespace`,`name`,`node`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `gateway` (
  `owner` varchar(128) NOT NULL,
  `url` varchar(255) NOT NULL,
  `seen_at` double NOT NULL,
  `own_time` double DEFAULT NULL,
  PRIMARY KEY (`owner`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `heard_signature` (
  `signature` varchar(64) NOT NULL,
  `request` varchar(64) NOT NULL,
  `until` double NOT NULL,
  PRIMARY KEY (`signature`),
  KEY `heard_signature_until` (`until`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `installation` (
  `id` varchar(36) NOT NULL,
  `created_at` double NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `job` (
  `job_id` varchar(128) NOT NULL,
  `flow_id` varchar(255) NOT NULL,
  `status` varchar(16) NOT NULL,
  `outcome` varchar(16) DEFAULT NULL,
  `created_at` double NOT NULL,
  `due_at` double DEFAULT NULL,
  `version` int(11) NOT NULL,
  `digest` varchar(64) NOT NULL,
  `spec` longtext NOT NULL,
  `state` longtext NOT NULL,
  PRIMARY KEY (`job_id`),
  KEY `job_due` (`due_at`),
  KEY `job_flow` (`flow_id`,`created_at`),
  KEY `job_created` (`created_at`),
  KEY `job_status` (`status`,`outcome`,`created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `job_audit` (
  `sender` varchar(128) NOT NULL,
  `audit_id` varchar(128) NOT NULL,
  `job_id` varchar(128) NOT NULL,
  PRIMARY KEY (`sender`,`audit_id`),
  KEY `job_audit_job` (`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `local_job` (
  `job_id` varchar(128) NOT NULL,
  `flow_id` varchar(255) NOT NULL,
  `status` varchar(16) NOT NULL,
  `outcome` varchar(16) DEFAULT NULL,
  `created_at` double NOT NULL,
  `due_at` double DEFAULT NULL,
  `version` int(11) NOT NULL,
  `digest` varchar(64) NOT NULL,
  `spec` longtext NOT NULL,
  `state` longtext NOT NULL,
  PRIMARY KEY (`job_id`),
  KEY `local_job_due` (`due_at`),
  KEY `local_job_flow` (`flow_id`,`created_at`),
  KEY `local_job_created` (`created_at`),
  KEY `local_job_status` (`status`,`outcome`,`created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `model` (
  `model_id` varchar(128) NOT NULL,
  `version` varchar(128) NOT NULL,
  `role` varchar(64) NOT NULL,
  `idx` int(11) NOT NULL,
  `job_id` varchar(128) NOT NULL,
  `created_at` double NOT NULL,
  `deployed_at` double DEFAULT NULL,
  `granted` longtext NOT NULL,
  `document` longtext NOT NULL,
  PRIMARY KEY (`model_id`,`version`,`role`,`idx`),
  KEY `model_job` (`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `provider` (
  `provider_key` varchar(255) NOT NULL,
  `document` longtext NOT NULL,
  `updated_at` double NOT NULL,
  PRIMARY KEY (`provider_key`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `provider_owner` (
  `name` varchar(128) NOT NULL,
  `owner` varchar(255) NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `provider_revision` (
  `provider_key` varchar(255) NOT NULL,
  `number` int(11) NOT NULL,
  `at` double NOT NULL,
  `author` varchar(255) NOT NULL,
  `action` varchar(16) NOT NULL,
  `reason` varchar(1000) NOT NULL,
  `document` longtext NOT NULL,
  PRIMARY KEY (`provider_key`,`number`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `resource_claim` (
  `job_id` varchar(128) NOT NULL,
  `state` varchar(16) NOT NULL,
  `cpu` bigint(20) NOT NULL,
  `memory` bigint(20) NOT NULL,
  `disk` bigint(20) NOT NULL,
  `priority` int(11) NOT NULL,
  `since` double NOT NULL,
  `asked_at` double NOT NULL,
  `held_at` double DEFAULT NULL,
  `scheduler` varchar(128) NOT NULL,
  `reason` longtext NOT NULL,
  `further` longtext DEFAULT NULL,
  PRIMARY KEY (`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `resource_engine` (
  `engine` varchar(255) NOT NULL,
  `cpu` double NOT NULL,
  `memory` bigint(20) NOT NULL,
  `seen_at` double NOT NULL,
  PRIMARY KEY (`engine`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `resource_pool` (
  `id` int(11) NOT NULL,
  `ignored` int(11) NOT NULL,
  `repaired` int(11) NOT NULL,
  `expired` int(11) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `route_export` (
  `id` int(11) NOT NULL,
  `number` int(11) NOT NULL,
  `digest` varchar(64) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `route_version` (
  `number` int(11) NOT NULL,
  `at` double NOT NULL,
  `author` varchar(255) NOT NULL,
  `reason` varchar(1000) NOT NULL,
  `source` varchar(16) NOT NULL,
  `text` longtext NOT NULL,
  PRIMARY KEY (`number`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `run` (
  `run_id` varchar(128) NOT NULL,
  `name` varchar(64) NOT NULL,
  `token` varchar(64) NOT NULL,
  `job_id` varchar(128) NOT NULL,
  `task_id` varchar(128) NOT NULL,
  `role` varchar(64) NOT NULL,
  `idx` int(11) NOT NULL,
  `attempt` int(11) NOT NULL,
  `status` varchar(16) NOT NULL,
  `owner` varchar(255) NOT NULL,
  PRIMARY KEY (`run_id`),
  UNIQUE KEY `name` (`name`),
  KEY `run_token` (`token`),
  KEY `run_job` (`job_id`),
  KEY `run_task` (`task_id`),
  KEY `run_status` (`status`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `submission` (
  `job_id` varchar(128) NOT NULL,
  `flow_id` varchar(255) NOT NULL,
  `scheduler` varchar(128) NOT NULL,
  `created_at` double NOT NULL,
  PRIMARY KEY (`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `task` (
  `task_id` varchar(128) NOT NULL,
  `job_id` varchar(128) NOT NULL,
  `name` varchar(255) NOT NULL,
  `status` varchar(16) NOT NULL,
  `attempt` int(11) NOT NULL,
  PRIMARY KEY (`task_id`),
  KEY `task_job` (`job_id`),
  KEY `task_status` (`status`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `timeline` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `job_id` varchar(128) NOT NULL,
  `side` varchar(16) NOT NULL,
  `at` double NOT NULL,
  `event` varchar(255) NOT NULL,
  `actor` varchar(255) NOT NULL,
  `detail` longtext NOT NULL,
  PRIMARY KEY (`id`),
  KEY `timeline_job` (`job_id`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `token` (
  `id` varchar(16) NOT NULL,
  `name` varchar(255) NOT NULL,
  `role` varchar(16) NOT NULL,
  `digest` varchar(64) NOT NULL,
  `created_at` double NOT NULL,
  `expires_at` double DEFAULT NULL,
  `revoked_at` double DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `digest` (`digest`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE `webhook` (
  `key` varchar(64) NOT NULL,
  `number` bigint(20) NOT NULL,
  `holder` varchar(255) NOT NULL,
  `until` double NOT NULL,
  PRIMARY KEY (`key`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
