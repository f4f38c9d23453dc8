-- The sample database. To make it anew: sqlite3 shop.db < shop.sql
CREATE TABLE product (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL UNIQUE,
    price REAL NOT NULL CHECK (0 <= price)
);
CREATE TABLE sale (
    id         INTEGER PRIMARY KEY,
    product_id INTEGER NOT NULL REFERENCES product (id),
    quantity   INTEGER NOT NULL CHECK (0 < quantity),
    sold_on    TEXT NOT NULL
);
CREATE INDEX sale_by_product ON sale (product_id);
CREATE VIEW revenue AS
    SELECT product.name, sum(quantity) AS sold, round(sum(quantity * price), 2) AS earned
    FROM sale JOIN product ON product.id = product_id
    GROUP BY product.id ORDER BY earned DESC;

INSERT INTO product (id, name, price) VALUES
    (1, 'Tea bag', 0.4), (2, 'Cup', 2.5), (3, 'Tea pot', 24.0), (4, 'Kettle', 39.9);
INSERT INTO sale (id, product_id, quantity, sold_on) VALUES
    (1, 1, 200, '2026-01-05'), (2, 3, 2, '2026-01-05'), (3, 2, 12, '2026-01-06'),
    (4, 4, 1, '2026-01-07'), (5, 1, 350, '2026-01-09'), (6, 3, 1, '2026-01-09'),
    (7, 2, 6, '2026-01-12'), (8, 4, 3, '2026-01-13');
