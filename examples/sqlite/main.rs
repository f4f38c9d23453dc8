//! Queries on one SQLite database, for reading only.
//!
//! Three walls keep it so, each enough by itself: the file is opened read-only, the
//! connection is `query_only`, and an authorizer refuses every statement that is made
//! of anything but reading. A query that is cancelled, or whose time is up, is
//! interrupted inside SQLite.

#[cfg(test)]
#[path = "../agrees.rs"]
mod agrees;
mod database;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use database::{Bounds, Database, Table, is_interrupted, is_refused};
use plugbay_sdk::{
    Activation, Context, Effect, Error, Plugin, Reply, Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The file, absolute or relative to this plugin's own folder.
    database: PathBuf,
    /// The most rows in one answer, whatever is asked for.
    #[serde(default = "default_max_rows")]
    max_rows: usize,
    /// About the most bytes in one answer.
    #[serde(default = "default_max_bytes")]
    max_bytes: usize,
}

fn default_max_rows() -> usize {
    1000
}

fn default_max_bytes() -> usize {
    64 << 10
}

struct State {
    database: Database,
    bounds: Bounds,
}

impl State {
    fn open(activation: &Activation) -> Result<Self, Error> {
        let Config { database: path, max_rows, max_bytes } = activation.config()?;
        let database = Database::open(&path).map_err(|error| {
            Error::precondition(format!("the database {}: {error}", path.display()))
        })?;
        Ok(Self { database, bounds: Bounds { rows: max_rows, bytes: max_bytes } })
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Query {
    /// One SELECT in SQLite's dialect, with `?` where parameters go.
    sql: String,
    /// The parameters, in order. Values belong here and not into the statement.
    #[serde(default)]
    params: Vec<Value>,
    /// The most rows to return.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1))]
    limit: usize,
}

fn default_limit() -> usize {
    100
}

fn query(ctx: Context<State>, Query { sql, params, limit }: Query) -> Result<Reply, Error> {
    let bounds = ctx.state().bounds;
    let bounds = Bounds { rows: limit.clamp(1, bounds.rows), ..bounds };
    Ok(shown(&run(&ctx, &sql, &params, bounds)?))
}

fn tables(ctx: Context<State>, (): ()) -> Result<Reply, Error> {
    let sql = "SELECT name, type FROM sqlite_schema \
               WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
               ORDER BY name";
    Ok(shown(&run(&ctx, sql, &[], ctx.state().bounds)?))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Schema {
    /// The name of a table or view.
    table: String,
}

fn schema(ctx: Context<State>, Schema { table }: Schema) -> Result<String, Error> {
    let sql = "SELECT sql FROM sqlite_schema WHERE tbl_name = ? COLLATE NOCASE AND sql NOT NULL \
               ORDER BY type = 'index', name";
    let found = run(&ctx, sql, &[json!(table)], ctx.state().bounds)?;
    if found.rows.is_empty() {
        return Err(Error::not_found(format!("no table or view is called {table:?}")));
    }
    let statements = found.rows.iter().filter_map(|row| row[0].as_str());
    Ok(statements.map(|sql| format!("{sql};")).collect::<Vec<_>>().join("\n"))
}

fn run(ctx: &Context<State>, sql: &str, params: &[Value], bounds: Bounds) -> Result<Table, Error> {
    ctx.check()?;
    let asks = ctx.clone();
    let stop = move || asks.is_cancelled();
    ctx.state().database.query(sql, params, bounds, stop).map_err(|error| {
        match ctx.check() {
            Err(stopped) if is_interrupted(&error) => stopped,
            _ if is_refused(&error) => Error::denied("only statements that read are allowed"),
            // A mistake in the statement is for the model to mend.
            _ => error.into(),
        }
    })
}

/// A table as text, one row a line, and as data.
fn shown(table: &Table) -> Reply {
    let cell = |value: &Value| match value {
        Value::String(text) => text.replace(['\n', '\t'], " "),
        other => other.to_string(),
    };
    let mut text = table.columns.join("\t");
    for row in &table.rows {
        text += "\n";
        text += &row.iter().map(cell).collect::<Vec<_>>().join("\t");
    }
    if table.truncated {
        text += "\n… and more";
    }
    let Table { columns, rows, truncated } = table;
    Reply::text(text).data(json!({ "columns": columns, "rows": rows, "truncated": truncated }))
}

fn plugin() -> Plugin<State> {
    Plugin::new("example.sqlite", env!("CARGO_PKG_VERSION"))
        .on_activate(async |activation: Arc<Activation>| State::open(&activation))
        .tool(
            Tool::plain("query", query)
                .describe("Runs one SELECT on the database and returns its rows.")
                .effect(Effect::Read)
                .idempotent(),
        )
        .tool(
            Tool::plain("tables", tables)
                .describe("Lists the tables and views of the database.")
                .effect(Effect::Read)
                .idempotent(),
        )
        .tool(
            Tool::plain("schema", schema)
                .describe("Shows how a table or view was created, and the indexes on it.")
                .effect(Effect::Read)
                .idempotent(),
        )
}

fn main() -> ExitCode {
    plugin().run()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use plugbay_sdk::{
        Code,
        testing::{Failed, Host, Output},
    };
    use rusqlite::Connection;
    use tempfile::TempDir;

    use super::*;

    const SHOP: &str = include_str!("../data/shop.sql");

    async fn host_with(config: Value) -> (Host, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        Connection::open(&path).unwrap().execute_batch(SHOP).unwrap();
        let mut config = config;
        config["database"] = json!(path);
        let host = Host::new(plugin());
        host.activate(config).await.unwrap();
        (host, folder)
    }

    async fn query(host: &Host, sql: &str) -> Result<Output, Failed> {
        host.call("query", json!({ "sql": sql })).await
    }

    #[tokio::test]
    async fn the_manifest_agrees() {
        agrees::with_manifest("sqlite", &Host::new(plugin()).tools());
    }

    #[test]
    fn the_sample_is_made_of_its_text() {
        let dump = |connection: &Connection| {
            let text = |sql| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
            [
                text("SELECT group_concat(sql, ';' ORDER BY name) FROM sqlite_schema"),
                text("SELECT json_group_array(json_array(id, name, price)) FROM product"),
                text(
                    "SELECT json_group_array(json_array(product_id, quantity, sold_on)) FROM sale",
                ),
            ]
        };
        let fresh = Connection::open_in_memory().unwrap();
        fresh.execute_batch(SHOP).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/shop.db");
        assert_eq!(dump(&Connection::open(path).unwrap()), dump(&fresh));
    }

    #[tokio::test]
    async fn rows_come_with_their_columns_and_parameters_are_no_sql() {
        let (host, _folder) = host_with(json!({})).await;
        let args = json!({
            "sql": "SELECT name, price FROM product WHERE name = ? OR price < ? ORDER BY price",
            "params": ["'; DROP TABLE product; --", 3],
        });
        let output = host.call("query", args).await.unwrap();
        assert_eq!(output.text(), "name\tprice\nTea bag\t0.4\nCup\t2.5");
        let data: Value = output.data().unwrap();
        let rows = json!([["Tea bag", 0.4], ["Cup", 2.5]]);
        let data_wanted = json!({"columns": ["name", "price"], "rows": rows, "truncated": false});
        assert_eq!(data, data_wanted);
        let sql = "SELECT null, 1, x'0102', 'a' || char(10) || 'b'";
        let output = query(&host, sql).await.unwrap();
        assert!(output.text().ends_with("\nnull\t1\t[2 bytes]\ta b"), "{}", output.text());
    }

    #[tokio::test]
    async fn nothing_but_reading_is_possible() {
        let (host, folder) = host_with(json!({})).await;
        let other = folder.path().join("other.db");
        Connection::open(&other).unwrap().execute_batch("CREATE TABLE secret (x)").unwrap();
        let before = fs::read(folder.path().join("shop.db")).unwrap();
        for sql in [
            "DELETE FROM product",
            "INSERT INTO product VALUES (9, 'x', 1)",
            "UPDATE product SET price = 0",
            "DROP TABLE sale",
            "CREATE TABLE t (x)",
            "CREATE TEMP TABLE t (x)",
            "PRAGMA query_only = 0",
            "PRAGMA journal_mode = wal",
            "VACUUM INTO 'copy.db'",
            "BEGIN IMMEDIATE",
            "SELECT 1; DELETE FROM product",
            &format!("ATTACH '{}' AS o", other.display()),
        ] {
            let failed = query(&host, sql).await;
            let failed = failed.expect_err(sql);
            assert_eq!(failed.code, Code::PermissionDenied, "{sql}: {failed}");
        }
        let output = query(&host, "SELECT load_extension('x')").await.unwrap();
        assert!(output.is_error && output.text().contains("not authorized"), "{}", output.text());
        // Two statements are none.
        let output = query(&host, "SELECT 1; SELECT 2").await.unwrap();
        assert!(output.is_error);
        assert_eq!(output.text(), "Multiple statements provided");
        assert_eq!(fs::read(folder.path().join("shop.db")).unwrap(), before);
    }

    #[tokio::test]
    async fn a_mistake_is_for_the_model_to_read() {
        let (host, _folder) = host_with(json!({})).await;
        let output = query(&host, "SELECT nmae FROM product").await.unwrap();
        assert!(output.is_error);
        assert!(output.text().contains("no such column: nmae"), "{}", output.text());
    }

    #[tokio::test]
    async fn an_answer_has_a_bound_in_rows_and_in_bytes() {
        let (host, _folder) = host_with(json!({"max_rows": 10, "max_bytes": 1000})).await;
        let many =
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n";
        let rows = async |sql: &str, limit: usize| {
            let output = host.call("query", json!({"sql": sql, "limit": limit})).await.unwrap();
            let data: Value = output.data().unwrap();
            (data["rows"].as_array().unwrap().len(), data["truncated"] == true)
        };
        assert_eq!(rows(many, 3).await, (3, true));
        assert_eq!(rows(many, 1_000_000).await, (10, true));
        assert_eq!(rows("SELECT 1", 1).await, (1, false));
        assert_eq!(rows("SELECT printf('%.600c', 'x') FROM product", 10).await, (1, true));
    }

    #[tokio::test]
    async fn a_query_without_end_is_interrupted() {
        let (host, _folder) = host_with(json!({})).await;
        let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) \
                       SELECT count(*) FROM n";
        let call = host.call("query", json!({"sql": endless})).start();
        tokio::time::sleep(Duration::from_millis(1)).await;
        call.cancel();
        assert_eq!(call.await.unwrap_err().code, Code::Cancelled);
        let call = host.call("query", json!({"sql": endless})).deadline(Duration::from_millis(1));
        assert_eq!(call.await.unwrap_err().code, Code::DeadlineExceeded);
        // Once the stopped queries have given their places back, all is as before.
        host.deactivate().await.unwrap();
    }

    #[tokio::test]
    async fn tables_and_their_schema_are_told() {
        let (host, _folder) = host_with(json!({})).await;
        let output = host.call("tables", json!({})).await.unwrap();
        assert_eq!(output.text(), "name\ttype\nproduct\ttable\nrevenue\tview\nsale\ttable");
        let output = host.call("schema", json!({"table": "SALE"})).await.unwrap();
        assert!(output.text().starts_with("CREATE TABLE sale"), "{}", output.text());
        assert!(output.text().contains("CREATE INDEX sale_by_product"), "{}", output.text());
        let failed = host.call("schema", json!({"table": "x"})).await.unwrap_err();
        assert_eq!(failed.code, Code::NotFound);
    }

    #[tokio::test]
    async fn what_is_no_database_is_said_at_activation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.db");
        fs::write(&path, "this is no database, however long it gets".repeat(100)).unwrap();
        for path in [path.as_path(), Path::new("/no/such/file.db")] {
            let host = Host::new(plugin());
            let failed = host.activate(json!({ "database": path })).await.unwrap_err();
            assert_eq!(failed.code, Code::FailedPrecondition);
        }
    }
}
